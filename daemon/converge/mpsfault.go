package converge

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

// mpsFaults is what must be known before a client of MPS has a fatal fault: when that is seen, the clients have ended.
type mpsFaults struct {
	mu       locks.Mutex[locks.Leaf] // guards what follows
	reported map[gpu.UUID]time.Time  // when the last reported fault of a GPU was seen
	leases   map[int]string          // of the clients of the last observation that listed some, by pid
}

// report publishes an event for each new fault, with the culprit and the victims.
func (f *mpsFaults) report(node *observe.Node, leaseOf func(pid int) (string, bool), publish func(api.Event)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[int]string{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.MPS == nil {
			continue
		}
		if last := g.MPS.Fault; last != nil && !last.Since.Equal(f.reported[g.Identity.UUID]) {
			if f.reported == nil {
				f.reported = map[gpu.UUID]time.Time{}
			}
			f.reported[g.Identity.UUID] = last.Since
			publish(api.Event{Kind: "mps.fault", GPU: string(g.Identity.UUID), Message: fmt.Sprintf("GPU %d: %s", g.Identity.Index, f.describe(last))})
		}
		for _, pid := range g.MPS.Clients {
			if id, ok := leaseOf(pid); ok {
				now[pid] = id
			}
		}
	}
	if len(now) > 0 {
		f.leases = now
	}
}

// describe names the processes of a fault with their leases.
func (f *mpsFaults) describe(last *mps.Fault) string {
	name := func(pid int) string {
		if id := f.leases[pid]; id != "" {
			return fmt.Sprintf("pid %d (lease %s)", pid, id)
		}
		return fmt.Sprintf("pid %d", pid)
	}
	text := "a client of MPS had a fatal fault, and the log does not name it"
	if last.Culprit != 0 {
		text = name(last.Culprit) + " had a fatal fault under MPS"
	}
	if len(last.Victims) == 0 {
		return text
	}
	var victims []string
	for _, pid := range last.Victims {
		victims = append(victims, name(pid))
	}
	return text + "; these lost their context: " + strings.Join(victims, ", ")
}
