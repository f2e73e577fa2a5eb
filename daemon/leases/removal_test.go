package leases

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
	"github.com/gpushare/gpushare/test/programs"
)

// removedFixture has a running lease of alice, who is a member of its tenant no more.
func removedFixture(t *testing.T, dir, enforce, onRemoval, getent string) *Leases {
	t.Helper()
	program := filepath.Join(dir, "getent")
	if err := programs.Write(program, "#!/bin/sh\n"+getent+"\n"); err != nil {
		t.Fatal(err)
	}
	tasks := &loop.Group{}
	tasks.Begin(t.Context())
	t.Cleanup(tasks.Wait)
	r := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	ids := server.NewIdentities(r, tasks, servertest.UidSelf, program)
	ids.Names.Passwd, ids.Names.Group = filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	ids.Names.Timeout = 10 * time.Second
	s := state.NewState(nil, false)
	spec := &api.Spec{Node: api.NodeSpec{Enforce: api.OnOff(enforce)}, Tenants: []api.TenantSpec{{Name: "vision", OnRemoval: onRemoval}}}
	s.SetDesired(&state.Desired{Spec: spec})
	ids.Spec = func() *api.Spec { return spec }
	ids.QueryNames(spec, time.Minute, true)
	ls := &Leases{
		Reporter:   r,
		Table:      leasetest.TableWith(t, "vision", "part", servertest.UidAlice),
		State:      s,
		Identities: ids,
		Tasks:      tasks,
	}
	return ls
}

// What becomes of the lease is reported once, however many other notices there are, and in observe mode not what the spec would do.
func TestRemovalIsReportedOnce(t *testing.T) {
	for _, c := range []struct{ enforce, onRemoval, want, not string }{
		{"on", "continue", "goes on (on_removal: continue)", "stopped"},
		{"on", "stop", "will be stopped", "goes on"},
		{"observe", "stop", "goes on, because gpushare only observes", "continue"},
	} {
		ls := removedFixture(t, t.TempDir(), c.enforce, c.onRemoval, "exit 2")
		id := ls.Table.Live()[0].ID
		reported := 0
		removed := map[string]*removal{}
		for range 3 {
			ls.checkRemoved(t.Context(), removed)
			l, _ := ls.Table.Get(id)
			for _, text := range l.Notices {
				if !strings.Contains(text, "any more: ") {
					continue
				}
				reported++
				if !strings.Contains(text, c.want) || strings.Contains(text, c.not) {
					t.Errorf("%s, %s: %q", c.enforce, c.onRemoval, text)
				}
			}
			for i := range 9 {
				ls.Table.Notice(id, lease.Notice{Kind: "test", Text: fmt.Sprint("another notice ", i)})
			}
		}
		if reported != 1 {
			t.Errorf("%s, %s: it was reported %d times", c.enforce, c.onRemoval, reported)
		}
	}
}

// leaving is a requester whose right ends.
type leaving struct{ left atomic.Bool }

func (x *leaving) Standing(string) lease.Standing {
	if x.left.Load() {
		return lease.Standing{Denied: "alice is not a member any more"}
	}
	return lease.Standing{Unsure: "it is not known"} // So it waits.
}

func (x *leaving) Confirm(context.Context, string) lease.Standing { return x.Standing("") }

// A request that waits ends at once when its user is removed, although the directory hangs that is queried about a running lease.
func TestRequestsEndWhileTheDirectoryHangs(t *testing.T) {
	dir := t.TempDir()
	queried := filepath.Join(dir, "queried")
	if err := syscall.Mkfifo(queried, 0o600); err != nil {
		t.Fatal(err)
	}
	ls := removedFixture(t, dir, "on", "stop", "exit 2")
	ls.Identities.Names.Timeout = 5 * time.Minute
	ls.ConvergeInterval = func() time.Duration { return 0 }
	ls.Identities.Names.Program = filepath.Join(dir, "hangs")
	if err := programs.Write(ls.Identities.Names.Program, "#!/bin/sh\necho > '"+queried+"'\nexec sleep 600\n"); err != nil {
		t.Fatal(err)
	}
	alice, forever := &leaving{}, time.Duration(0)
	waiting, err := ls.Table.Submit(
		lease.Request{Tenant: "vision", Member: []string{"vision"}, UID: servertest.UidAlice, By: alice, Wait: &forever},
	)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := waiting.Next(t.Context()); err != nil || u.Placed {
		t.Fatalf("it does not wait: %+v, %v", u, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var loops loop.Group
	t.Cleanup(loops.Wait)
	t.Cleanup(stop)
	loops.Go(func() { ls.recheckLoop(ctx) })
	loops.Go(func() { ls.removalLoop(ctx) })
	if _, err := os.ReadFile(queried); err != nil { // It waits until the directory is queried.
		t.Fatal(err)
	}
	alice.left.Store(true)
	ls.Identities.Announce()
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second) // The daemon waits for the directory for longer than that.
	defer cancel()
	if _, err := waiting.Next(soon); err == nil || !strings.Contains(err.Error(), "not a member any more") {
		t.Errorf("the request of a removed user: %v", err)
	}
}
