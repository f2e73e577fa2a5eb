package outside

import (
	"context"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/quota"
)

const (
	// interval is the time between two passes. Memory and processes are those that were read for other reasons; the utilisation is
	// queried here, of GPUs with such processes only, and the driver keeps ten seconds of it.
	interval = 5 * time.Second
	// utilizationTimeout limits one query for it.
	utilizationTimeout = time.Second
)

// Watch measures use outside of leases.
type Watch struct {
	*report.Reporter
	Driver      utilizer
	Observer    *observe.Observer
	Samples     *observe.Samples
	Attribution attributer
	WorkerPID   func() int
	UserOf      func(pid int) (user string, uid int, ok bool)
	Recorder    recorder

	gpus map[gpu.UUID]*watched // used by the loop only

	mu   locks.Mutex[locks.Leaf] // guards uses
	uses []Use
}

type utilizer interface {
	Utilization(ctx context.Context, id gpu.UUID, since uint64) ([]gpu.UtilSample, uint64, error)
}

type attributer interface {
	LeaseLookup(about int) func(pid int) (string, bool)
}

type recorder interface {
	RecordOutside(i *usage.OutsideInterval)
}

// Use is the processes of one user that use one GPU and are in no lease.
type Use struct {
	GPU    gpu.UUID
	User   string
	UID    int
	PIDs   []int   // sorted
	Memory *uint64 // bytes; nil: the driver does not report that of one of them
	// Unmeasured is why it is not known whether their kernels run; empty: it is measured.
	Unmeasured string
}

// watched is what was last read of a GPU.
type watched struct {
	readAt time.Time // zero: not yet, or the last reading failed
	users  map[string]Use
	since  uint64    // the newest sample of utilisation, by the driver's clock
	at     time.Time // of the last query; zero: none, or it failed
}

// Run measures until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	w.gpus = map[gpu.UUID]*watched{}
	for {
		w.pass(ctx, w.Samples.Overlay(w.Observer.Last()))
		if !loop.Every(ctx, interval) {
			return
		}
	}
}

// Uses returns who uses GPUs outside of leases, as of the last pass.
func (w *Watch) Uses() []Use {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.uses)
}

// pass reports what was used since the last one, as a node shows it.
func (w *Watch) pass(ctx context.Context, node *observe.Node) {
	shown := 0
	for i := range node.GPUs {
		shown += len(node.GPUs[i].Processes)
	}
	leaseOf := w.Attribution.LeaseLookup(shown)
	var uses []Use
	known := map[gpu.UUID]bool{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		known[id] = true
		x := w.gpus[id]
		if x == nil {
			x = &watched{}
			w.gpus[id] = x
		}
		if g.Err != nil {
			*x = watched{users: x.users}
			for _, h := range x.users { // They are shown as they were.
				h.Unmeasured = "the GPU does not answer"
				uses = append(uses, h)
			}
			continue
		}
		uses = append(uses, w.measure(ctx, g, x, leaseOf)...)
	}
	for id := range w.gpus {
		if !known[id] {
			delete(w.gpus, id)
		}
	}
	slices.SortFunc(uses, compareUses)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.uses = uses
}

// measure reports what the users of one GPU used since the last pass.
func (w *Watch) measure(ctx context.Context, g *observe.GPU, x *watched, leaseOf func(int) (string, bool)) []Use {
	users := w.usersOf(g, leaseOf)
	if g.ReadAt.After(x.readAt) {
		for name := range users {
			if before, ok := x.users[name]; ok && !x.readAt.IsZero() {
				w.Recorder.RecordOutside(&usage.OutsideInterval{
					OutsideKey: usage.OutsideKey{User: name, GPU: g.Identity.UUID},
					From:       x.readAt,
					To:         g.ReadAt,
					Held:       true,
					Memory:     between(before.Memory, users[name].Memory),
				})
			}
		}
		x.readAt = g.ReadAt
	}
	x.users = users
	unmeasured := w.measureBusy(ctx, g, x)
	out := make([]Use, 0, len(users))
	for name, h := range users {
		h.Unmeasured = unmeasured
		users[name] = h
		out = append(out, h)
	}
	return out
}

func between(a, b *uint64) *usage.Memory {
	if a == nil || b == nil {
		return nil
	}
	return &usage.Memory{Mean: *a/2 + *b/2, Peak: max(*a, *b)}
}

// usersOf adds up the processes of no lease by their users. Those of gpushare are left out.
func (w *Watch) usersOf(g *observe.GPU, leaseOf func(int) (string, bool)) map[string]Use {
	out, daemons := map[string]Use{}, g.ControlDaemons()
	for i := range g.Processes {
		p := &g.Processes[i]
		if _, leased := leaseOf(p.PID); leased || p.PID == w.WorkerPID() || attribution.IsServingMPS(daemons, p.PID) {
			continue
		}
		user, uid, ok := w.UserOf(p.PID)
		if !ok {
			continue // It has exited.
		}
		h, known := out[user]
		if !known {
			h = Use{GPU: g.Identity.UUID, User: user, UID: uid, Memory: new(uint64)}
		}
		if slices.Contains(h.PIDs, p.PID) {
			continue // A process may be in two of the driver's lists, with the same memory.
		}
		h.PIDs = append(h.PIDs, p.PID)
		slices.Sort(h.PIDs)
		switch {
		case p.Memory == nil:
			h.Memory = nil
		case h.Memory != nil:
			h.Memory = new(*h.Memory + *p.Memory)
		}
		out[user] = h
	}
	return out
}

// measureBusy reports the busy time of the users of a GPU, and returns why that is not known.
func (w *Watch) measureBusy(ctx context.Context, g *observe.GPU, x *watched) (unmeasured string) {
	id := g.Identity.UUID
	switch {
	case len(x.users) == 0:
		x.at = time.Time{}
		return ""
	case g.MIG.Current:
		x.at = time.Time{}
		return UnmeasuredMIG
	}
	ctx, cancel := context.WithTimeout(ctx, utilizationTimeout)
	defer cancel()
	from, at := x.at, time.Now()
	list, newest, err := w.Driver.Utilization(ctx, id, x.since)
	if err != nil {
		x.at = time.Time{}
		return "the driver does not report the utilisation of processes: " + err.Error()
	}
	x.since, x.at = max(x.since, newest), at
	if from.IsZero() {
		return "" // It is not known for which time the samples are.
	}
	userOf := map[int]string{}
	for name, h := range x.users {
		for _, pid := range h.PIDs {
			userOf[pid] = name
		}
	}
	daemons := g.ControlDaemons()
	server := false
	parts := quota.PartsOf(list, func(pid int) string {
		server = server || userOf[pid] == "" && attribution.IsServingMPS(daemons, pid)
		return userOf[pid]
	})
	if u := g.Utilization; len(parts) == 0 && u != nil && *u > 0 {
		return "" // The GPU has work, and no sample says whose: that is not known.
	}
	for name := range x.users {
		part := min(parts[name], 1)
		if part == 0 && server {
			continue // The driver may name the MPS server instead of its clients.
		}
		w.Recorder.RecordOutside(&usage.OutsideInterval{
			OutsideKey: usage.OutsideKey{User: name, GPU: id},
			From:       from,
			To:         at,
			Busy:       &usage.Busy{Time: time.Duration(part * float64(at.Sub(from))), Variance: quota.BusyVariance(part, at.Sub(from))},
		})
	}
	return ""
}

// UnmeasuredMIG is why it is not known whether a process on a MIG instance is idle.
const UnmeasuredMIG = "the driver reports no utilisation of processes in " + api.ModeMIG + " mode"

func compareUses(a, b Use) int {
	return slices.Compare([]string{string(a.GPU), a.User}, []string{string(b.GPU), b.User})
}

// UserOf returns a function that finds the user of a process.
func UserOf(name func(uid int) string) func(pid int) (user string, uid int, ok bool) {
	return func(pid int) (string, int, bool) {
		uid, err := procfs.UID(pid)
		if err != nil {
			return "", 0, false
		}
		return name(int(uid)), int(uid), true
	}
}
