// Package mps runs CUDA MPS for GPUs: it describes the control daemon of each GPU as a unit, starts, watches and stops it,
// speaks to it and reads what it answers, and gives a lease the environment that joins it.
//
// It starts nothing as a child that would end with its caller, it trusts no exit code of the control program, and it is no
// CUDA client. What uses a GPU beside MPS is for others to see: this package knows only who is connected.
//
// One control daemon serves one GPU, protocol version 2, one server for all users. Each is known by the GPU's UUID.
package mps
