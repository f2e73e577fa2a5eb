package health

import "slices"

// Running is a running lease on a hot GPU.
type Running struct {
	Lease    string
	Priority int    // a higher one is more important
	Never    string // why it cannot be paused; empty: it can
	Frozen   bool   // an administrator froze it, so no other lease is paused for it
}

// Pause is which leases of a hot GPU are paused.
type Pause struct {
	Leases []string
	// Never are those of the same priority that cannot be paused. No lease of another priority is paused for them.
	Never []Running
}

// Pauses chooses the leases that are paused while their GPU is hot: those of the lowest priority, if a lease of a higher one runs. With
// one priority there is no lease for which the others would be paused.
func Pauses(running []Running) (out Pause) {
	if len(running) == 0 {
		return out
	}
	lowest := running[0].Priority
	for _, r := range running {
		lowest = min(lowest, r.Priority)
	}
	if !slices.ContainsFunc(running, func(r Running) bool { return r.Priority > lowest && !r.Frozen }) {
		return out
	}
	for _, r := range running {
		switch {
		case r.Priority != lowest:
		case r.Never != "":
			out.Never = append(out.Never, r)
		default:
			out.Leases = append(out.Leases, r.Lease)
		}
	}
	return out
}
