// Package outside measures what processes that are in no lease use of GPUs, in every mode of the node: who they are, their GPU memory,
// and whether their kernels run. It stops nothing, and reports to the account.
package outside
