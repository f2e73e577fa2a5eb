// Package lease is the lease table: which lease uses which grant and where, which requests wait, and whether another
// lease fits.
//
// It contains the queue of the node, the admission arithmetic and the choice of a place as pure code, and the life of a
// lease from its request to its end. It does not touch hardware, cgroups or files: the caller passes the state of the
// node (View), an Isolation for the processes, and a function that saves the table. It measures nothing: shares and
// memory in use belong to package quota.
//
// A lease is requested, queued, admitted, placed, isolated, running, ending and ended. Requested and admitted last only
// inside Submit and inside the evaluation of the queue: no caller sees a lease in them. What is done for a request meanwhile is
// the state of its ticket (ticketStates).
//
// # Admission
//
// The memory of the grants that are reserved or have a live lease on a GPU may not exceed the GPU's memory minus the
// reserve, unless the spec allows overcommit. A grant's memory is for all its leases on one GPU together, so a second
// lease of the grant costs nothing there. Shares of a time-sliced GPU are weights: the sum of the live ones may exceed
// 100 %. Then the entitled share that is shown is normalised, and Oversubscribed reports it. Reserved ones that exceed it
// are refused with the spec (ReservedMisfit), unless it allows overcommit. With latency: low a share is a part of the whole time: those
// that are reserved or live on a GPU may not exceed 80 % of it, also with overcommit; more reserved ones are refused with the spec, and a
// request that would exceed it waits. Shares under MPS are parts of the threads:
// their sum may not exceed 100 % without overcommit, and a request waits. A grant's share on a GPU is split evenly among its leases
// there. A lease that is ending keeps its place until it has ended.
//
// A user may have only so many leases and so much granted memory at once, over all tenants (PerUser). It is checked when
// a lease gets its place: a request beyond it waits and claims nothing, and a lease that has its place keeps it. A shared
// grant counts once for each user and GPU, with all its memory. Root has no limit, and units and containers, which no
// user of a tenant started, count for root.
//
// # The queue
//
// Higher priority first, then who used less lately (queueOrder), then first come. A request that waits does not delay
// requests for other GPUs, but it claims what it would get next: of the idle GPUs all that it could use, of shared GPUs
// the one that lacks least. So a stream of small requests cannot starve a large one. A lease that ends before the request
// starts may have what it claims until then, if both are known (backfill).
//
// # Preemption
//
// For a request that waits, the table chooses the fewest leases of lower priority whose tenants allow it (preempt: stop)
// and whose end frees a place. The caller stops them (TakePreemptions); until they have ended, the request claims what they
// free, and no further lease of their grants starts there. It is ahead of all requests of its priority meanwhile.
//
// # Instances on demand
//
// Where instances are created on demand (GPUView.DynamicProfiles), a request for which none is idle gets the capacity
// for one, if there is any. It keeps its position in the queue while the caller creates the instance
// (TakePendingInstances, FinishPendingInstances), and the instance is then used for this request before any other.
// Until the caller takes the pending instance, a request ahead of it may get the capacity instead. A request without
// capacity claims the placement with the fewest slices in use, and later requests do not use that placement.
package lease
