// Package gpu is the port to the GPUs of one node: the Driver interface, the values that cross it and its typed errors.
//
// It holds no policy and talks to no hardware. gpu/nvml implements Driver with the vendor's library, gpu/worker carries
// it across a process, and gpusim implements it with a virtual node.
package gpu
