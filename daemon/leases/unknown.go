package leases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/store"
)

// unknownScopes are the scopes of leases that run without a record: the file of leases was lost, or an older one was read. Their
// GPUs take no lease until they end, so that no place is granted twice.
type unknownScopes struct {
	mu  locks.Mutex[locks.UnknownLeases] // guards all, and the order of what is reported of it
	all map[string][]gpu.UUID            // the GPUs that each may use, by the id of its lease
}

// unknownKind is the kind of their conditions.
const unknownKind = "unknown-lease"

// findUnknown finds them at start. While the service manager does not answer it tries again: until then no place is granted.
func (ls *Leases) findUnknown(ctx context.Context) error {
	for {
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		found, err := ls.unknownNow(try)
		cancel()
		if err == nil {
			ls.Watchers.unknown.mu.Lock()
			ls.Watchers.unknown.all = found
			ls.Watchers.unknown.mu.Unlock()
			ls.closeUnknown()
			for id := range found {
				ls.Log.Error("a lease runs without a record", "message_id", report.MessageLeaseUnknown, "lease", id, "gpus", found[id])
				ls.Tasks.Go(func() { ls.awaitUnknown(ls.Tasks.Context(), id) })
			}
			return nil
		}
		ls.Log.Warn("cannot find the scopes of leases", "error", err)
		if !loop.Pause(ctx, recoverRetryInterval) {
			return ctx.Err()
		}
	}
}

func (ls *Leases) unknownNow(ctx context.Context) (map[string][]gpu.UUID, error) {
	scopes, err := ls.Port.Scopes(ctx)
	if errors.Is(err, cgroup.ErrNotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string][]gpu.UUID{}
	for i := range scopes {
		if _, known := ls.Table.Get(scopes[i].ID); !known {
			out[scopes[i].ID] = ls.gpusOfScope(ctx, &scopes[i])
		}
	}
	return out, nil
}

// gpusOfScope returns the GPUs that a scope may use: those of its device rules, else those of the grant whose slice contains it,
// else all.
func (ls *Leases) gpusOfScope(ctx context.Context, s *cgroup.ScopeState) []gpu.UUID {
	if port := ls.Port.Abilities().ScopeDevices; port != nil {
		if closed, rules, err := port.ScopeDeviceRules(ctx, s.ID); err == nil && closed {
			return devicepolicy.GPUsOf(ls.Observer.Last(), rules)
		}
	}
	want := ls.State.Desired()
	list, err := ls.Port.Slices(ctx)
	for i := range list {
		if name := list[i].Name; err == nil && name.Grant != "" && list[i].Path != "" && cgroup.Below(s.Path, list[i].Path) {
			if gpus, ok := want.Grants[state.GrantKey{Tenant: name.Tenant, Grant: name.Grant}]; ok {
				return gpus
			}
		}
	}
	return slices.Collect(maps.Keys(want.GPUs))
}

// closeUnknown closes the GPUs and reports why.
func (ls *Leases) closeUnknown() {
	ls.Watchers.unknown.mu.Lock()
	defer ls.Watchers.unknown.mu.Unlock()
	var closed closing.Closures
	conditions := map[string]api.Condition{}
	for id, gpus := range ls.Watchers.unknown.all {
		var names []string
		for _, g := range gpus {
			if at := closing.OnGPU(g); len(closed.At(at)) == 0 {
				closed = append(closed, store.Closure{Where: at, Reason: "a lease whose record was lost runs there"})
			}
			if seen, ok := ls.Observer.Last().GPU(g); ok {
				names = append(names, seen.Identity.Name())
			}
		}
		slices.Sort(names)
		where := "it has no GPU"
		if len(names) > 0 {
			where = strings.Join(names, ", ") + " take no lease until it ends"
		}
		conditions[id] = api.Condition{
			Message: fmt.Sprintf("lease %s runs, and its record was lost: %s", id, where),
			Hint:    "wait until it ends, or kill its processes with 'gpushare lease stop " + id + "'",
		}
	}
	ls.State.SetFound(closing.UnknownLease, closed)
	ls.Conditions.Replace(unknownKind, conditions)
	ls.Invalidate()
}

// awaitUnknown opens the GPUs again when the scope is empty.
func (ls *Leases) awaitUnknown(ctx context.Context, id string) {
	for {
		err := ls.Port.WaitEmpty(ctx, id)
		if err == nil || errors.Is(err, cgroup.ErrNotFound) || errors.Is(err, cgroup.ErrOutOfMemory) {
			break
		}
		if ctx.Err() != nil {
			return
		}
		ls.Log.Warn("cannot wait for the end of a lease without a record", "lease", id, "error", err)
		if !loop.Pause(ctx, recoverRetryInterval) {
			return
		}
	}
	ls.Watchers.unknown.mu.Lock()
	delete(ls.Watchers.unknown.all, id)
	ls.Watchers.unknown.mu.Unlock()
	ls.closeUnknown()
	ls.Wake()
}

// isUnknown reports whether a lease of this id runs without a record.
func (ls *Leases) isUnknown(id string) bool {
	ls.Watchers.unknown.mu.Lock()
	defer ls.Watchers.unknown.mu.Unlock()
	_, ok := ls.Watchers.unknown.all[id]
	return ok
}
