// Package engine is the compute engine of one virtual GPU, or of one MIG GPU instance: contexts with kernel queues that
// share time, the driver's ring of utilisation samples, and the true busy time of every process.
//
// It is pure arithmetic on an injected clock: no goroutine, no socket, no memory accounting, no rules about who may have a
// context. The queues live here and not in the process that filled them, so a frozen process stops submitting while what
// it had queued still runs, as on hardware.
//
// Groups share the engine equally, as hardware time slicing does with every group ready (processor sharing: the slice is
// taken as infinitely short). Contexts of one group, which stands for one MPS server, run side by side within its time.
package engine
