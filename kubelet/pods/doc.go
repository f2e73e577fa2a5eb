// Package pods knows the pods of the node, as the API server has them, and which claims they use. The kubelet asks a driver to prepare a
// claim for its first pod alone: a further one is seen here.
package pods
