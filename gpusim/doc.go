// Package gpusim is a virtual node: GPUs that follow the rules of real ones, MIG included, under an injected clock.
//
// This package has the rules. It offers two interfaces: gpu.Driver (Node.Driver) for tests with virtual time, and the
// single calls of the vendor's library (Node.NVML) for the socket of the C shim. It is not a source of hardware figures:
// the data of boards are in testdata/gpus, where each number names its source.
package gpusim
