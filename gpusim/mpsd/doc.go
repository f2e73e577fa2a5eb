// Package mpsd replaces nvidia-cuda-mps-control and nvidia-cuda-mps-server on the virtual node. It implements version 2
// of the protocol as in the branch of the node's driver: 535, 550, 580 or 615, observed by running the real control
// binaries without a GPU.
//
// It copies the behaviour that a supervisor must handle: the files and their modes, the greeting, one thread that serves
// one peer after the other and blocks with each of them, exit code 0 for errors, a parser of memory limits that misreads
// units, servers that outlive a killed control daemon. It runs no CUDA work: clients are programs of the virtual node
// with their own form of the handshake, and the engine runs them as one group.
package mpsd
