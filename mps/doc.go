// Package mps describes CUDA MPS: the settings and the state of a control daemon, what its program can do and how its answers are
// parsed, the steps from an observed to a desired state, and the environment with which a lease joins. It runs, reads and changes
// nothing: package mps/control does.
//
// One control daemon serves one GPU or one MIG instance with protocol version 2 and one server for all users. The GPU's UUID
// and the instance's placement identify it.
package mps
