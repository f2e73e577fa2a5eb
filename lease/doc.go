// Package lease is the lease table: who uses which grant where, who waits for one, and whether another fits.
//
// It holds the one queue of the node, the admission arithmetic and the choice of a place as pure code, and the life of
// a lease from its request to its end. It does not touch hardware, cgroups or files: it is told what the node is like
// (View), asks Walls to wall a process in, and hands its state to the caller to be kept. It measures nothing: shares and
// memory in use are package quota's.
//
// A lease is requested, queued, admitted, placed, walled, running, ending and gone. Requested and admitted are moments
// inside Submit and inside the evaluation of the queue; nobody can see a lease in them.
//
// # Admission
//
// The memory of the grants that are reserved or have a live lease on a GPU may not exceed what the GPU has less the
// reserve, unless overcommit is written for it. A grant's memory is for all its leases on one GPU together, so a second
// lease of the grant costs nothing there. Shares of a time-sliced GPU are weights: their sum may exceed 100 %, and then
// the entitled share that is shown is normalised. Shares under MPS are parts of the threads: their sum may not exceed
// 100 % without overcommit. A grant's share on a GPU is split evenly among its leases there. A lease that is ending
// holds its place until it is gone.
//
// # The queue
//
// Higher priority first, then first come. A request that waits does not hold up requests for something else, but it
// claims what it would get next: of the idle GPUs all that it could use, of shared GPUs the one that lacks least. So a
// stream of small requests cannot starve a large one.
//
// # Instances on demand
//
// Where instances are made on demand (GPUView.Grid), a request for which none is idle is given room for one, if there is
// any: it waits at its place in the queue while the caller makes it (TakePendingInstances, FinishPendingInstances), and the instance is then
// its own before anybody's. Until somebody has begun, who comes before it may take the room. Who has no room claims the
// placement in which the fewest slices are somebody's, and later requests leave that alone.
package lease
