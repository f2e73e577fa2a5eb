// Package gpusim is a virtual node: GPUs that follow the rules of real ones, MIG included, under an injected clock.
//
// The rules live here, and are reached in two ways: as gpu.Driver (Node.Driver), for tests under virtual time, and call
// by call as the vendor's library would make them (Node.NVML), for the socket behind the C shim. It is not a source of
// hardware figures: what it knows of a board comes from testdata/gpus, where each number names its source.
package gpusim
