// Package mpsd is a stand-in for nvidia-cuda-mps-control and nvidia-cuda-mps-server on the virtual node: version 2 of the
// protocol as the 580 generation speaks it, seen by running the real control binary without a GPU.
//
// It copies what a supervisor can meet: the files and their modes, the greeting, one thread that serves one peer after the
// other and so hangs with any of them, exit codes that say 0 for errors, a memory-limit parser that corrupts, servers that
// outlive a killed control daemon. It moves no CUDA work: clients are programs of the virtual node that know its own form
// of the handshake, and the engine runs them as one group.
package mpsd
