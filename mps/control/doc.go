// Package control runs CUDA MPS on GPUs. It describes the control daemon of each GPU, or of each MIG instance, as a unit, starts,
// observes and stops it, and carries out the steps that package mps plans.
//
// It starts no child process that would end with its caller, does not rely on exit codes of the control program, and is no
// CUDA client. It knows only the clients of MPS, not other processes on the GPU.
package control
