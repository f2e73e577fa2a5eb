// Package engine is the compute engine of one virtual GPU, or of one MIG GPU instance: contexts with kernel queues that
// share time, the driver's rings of utilisation samples, and the true busy time of every process. Sampling has the ways in
// which drivers may sample: what depends on one of them is tested with all.
//
// It is pure arithmetic on an injected clock: no goroutine, no socket, no memory accounting, no rules about who may have
// a context. The queues are in the engine, not in the process that filled them: when the process is frozen it stops
// submitting, and its queued kernels still run, as on hardware.
//
// Groups share the engine equally, as with hardware time slicing when every group has work (processor sharing: the time
// slice counts as infinitely short), or they run one after the other, with kernels that can be interrupted or not (SwitchBy). A group
// represents one MPS server. Its contexts run concurrently within the time of the group.
package engine
