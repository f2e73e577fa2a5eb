// Package change carries a change from its proposal to its closing: the spec, MIG instances on demand, giving the node back,
// and what an earlier life left open. What is changed is planned elsewhere.
package change
