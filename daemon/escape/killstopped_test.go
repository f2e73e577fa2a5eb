package escape

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/lease"
)

// Processes that got SIGSTOP are killed also when the daemon ends meanwhile, and only one that was killed is reported as killed.
func TestStoppedProcessesAreKilled(t *testing.T) {
	e, _ := escapesOnNothing(t)
	sub, end := e.Events.Subscribe()
	defer end()
	e.Escaped.leases = map[string]*lease.Lease{}
	var all []escapedProcess
	for i, name := range []string{"killed", "gone", "refused"} {
		id := "lease-of-" + name
		e.Escaped.leases[id] = &lease.Lease{ID: id}
		all = append(all, escapedProcess{pid: 10 + i, name: name, lease: id, why: "a test"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.killStopped(ctx, all, func(ctx context.Context, pid int) error {
		if ctx.Err() != nil {
			return ctx.Err() // as the relay of signals
		}
		return map[int]error{11: procfs.ErrNoProcess, 12: unix.EPERM}[pid]
	})
	for _, want := range []string{"pid 10 (killed) left the lease for : a test; it was killed", "pid 11 (gone) left the lease for : a test; it has exited"} {
		select {
		case ev := <-sub.C:
			if ev.Kind != "lease.escaped" || !strings.Contains(ev.Message, want) {
				t.Errorf("the event %+v, want %q", ev, want)
			}
		default:
			t.Errorf("no event %q", want)
		}
	}
	select {
	case ev := <-sub.C:
		t.Errorf("the event %+v of a process that was not killed", ev)
	default:
	}
}
