// Package mps runs CUDA MPS on GPUs. It describes the control daemon of each GPU, or of each MIG instance, as a unit, starts,
// observes and stops it, sends commands to it and parses the answers, and returns the environment with which a lease joins it.
//
// It starts no child process that would end with its caller, does not rely on exit codes of the control program, and is no
// CUDA client. It knows only the clients of MPS, not other processes on the GPU.
//
// One control daemon serves one GPU or one MIG instance with protocol version 2 and one server for all users. The GPU's UUID
// and the instance's placement identify it.
package mps
