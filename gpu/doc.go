// Package gpu is the port to the GPUs of one node: the Driver interface, the values that cross it and its typed errors.
//
// It has no policy and does not access hardware. gpu/nvml implements Driver with the vendor's library, gpu/worker
// forwards it to a worker process, and gpusim implements it with a virtual node.
package gpu
