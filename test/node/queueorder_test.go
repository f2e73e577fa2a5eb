package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

const fairSpec = `version: v1
node:
  enforce: on
  queue: {half_life: 1h, waiting: 63}
gpus:
  - {select: {index: 3}, mode: exclusive}
tenants:
  - name: red
    members: {users: [member, colleague]}
    grants: [{name: whole, exclusive: 1, max_leases: 100}]
`

// startFair starts a node with two members of one tenant and one exclusive GPU.
func startFair(t *testing.T) *attackFixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	n := inDirectory(t)
	directory(t, n, peopleDirectory())
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, fairSpec)
	return &attackFixture{Node: n, who: callers()}
}

// spawn starts a command of one of the callers, which ends with the test.
func (b *attackFixture) spawn(t *testing.T, column int, args ...string) *harness.Job {
	t.Helper()
	job, err := b.Spawn(b.as(t, column, args...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	return job
}

// A user has the GPU and 63 requests that wait for it. The first request of another user starts next; so it is after the daemon was
// killed, which forgets neither. The order has its reason, and one request more is refused.
func TestOneUserDoesNotBlockTheQueue(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	b := startFair(t)
	first := b.spawn(t, member, "run", "-q", "--", "sh", "-c", `echo "lease=$GPUSHARE_LEASE."; exec sleep 600`)
	if err := first.AwaitLine(soon(t), "."); err != nil {
		t.Fatal(err)
	}
	for range 63 {
		b.spawn(t, member, "run", "-q", "--wait", "--", "sleep", "600")
	}
	awaitStatus(t, b.Node, "63 requests do not wait", func(s *api.Status) bool { return len(s.Leases) == 64 })
	out, err := b.as(t, member, "run", "-q", "--wait", "--", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "you wait for 63 of grant whole already, the most that a user may (queue.waiting)") {
		t.Errorf("one request more ends with %v: %s", err, out)
	}

	b.spawn(t, colleague, "run", "-q", "--wait", "--", "sleep", "600")
	of := func(s *api.Status, uid int) *api.Lease {
		for i := range s.Leases {
			if s.Leases[i].UID == uid {
				return &s.Leases[i]
			}
		}
		return nil
	}
	uid := b.who[colleague].uid
	s := awaitStatus(t, b.Node, "the other user does not wait", func(s *api.Status) bool { return of(s, uid) != nil })
	l := of(s, uid)
	if l.State != api.LeaseQueued || l.Position != 1 || !strings.Contains(l.PositionReason, "(half-life 1h)") {
		t.Errorf("the other user's request is %s at position %d: %s", l.State, l.Position, l.PositionReason)
	}
	if r := b.CLI(
		soon(t), "explain", l.ID,
	); r.Code != 0 || !strings.Contains(r.Out, "position") || !strings.Contains(r.Out, "GPU-hours lately") ||
		!strings.Contains(r.Out, "it is not known") {
		t.Errorf("explain says %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := b.CLI(soon(t), "explain", "red"); r.Code != 0 || !strings.Contains(r.Out, "half-life 1h): member ") {
		t.Errorf("explain says %d: %s%s", r.Code, r.Out, r.Err)
	}

	b.KillDaemon()
	if err := b.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, b.Node, "not all requests wait again", func(s *api.Status) bool {
		l := of(s, uid)
		return len(s.Leases) == 65 && l != nil && l.Position == 1
	})
	first.Kill()
	awaitStatus(t, b.Node, "the other user's request does not start", func(s *api.Status) bool {
		for i := range s.Leases {
			if l := &s.Leases[i]; l.State == api.LeaseRunning && l.ID != leaseOf(first) && l.UID != uid {
				t.Fatalf("%s of uid %d was started instead", l.ID, l.UID)
			}
		}
		l := of(s, uid)
		return l != nil && l.State == api.LeaseRunning
	})
}

// A request waits for two GPUs, of which one is in use until a known time. The other runs a lease that ends before.
func TestBackfill(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [2, 3]}, mode: exclusive}
tenants:
  - name: red
    grants: [{name: one, exclusive: 1, max_leases: 10}, {name: two, exclusive: 2}]
`)
	run := func(grant string, args ...string) *harness.Job {
		t.Helper()
		job, err := n.Run(
			append(
				[]string{"-q", "-t", "red", "--grant", grant},
				append(args, "--", "sh", "-c", `echo "lease=$GPUSHARE_LEASE."; exec sleep 600`)...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		return job
	}
	first := run("one", "--time", "1h")
	if err := first.AwaitLine(soon(t), "."); err != nil {
		t.Fatal(err)
	}
	large := run("two", "--wait")
	if err := large.AwaitLine(soon(t), "its position: tenant red used "); err != nil {
		t.Errorf("%v: %s", err, large.Output())
	}
	s := awaitStatus(t, n, "the large request has no expected start", func(s *api.Status) bool {
		return len(s.Leases) == 2 && s.Leases[1].ExpectedStart != nil
	})
	if until := s.Leases[0].Expires; until == nil || !s.Leases[1].ExpectedStart.Equal(*until) {
		t.Errorf("it is expected to start at %v, and the GPU is in use until %v", s.Leases[1].ExpectedStart, until)
	}
	for _, command := range []string{"show", "list"} {
		args := []string{"lease", command}
		if command == "show" {
			args = append(args, s.Leases[1].ID)
		}
		if r := n.CLI(
			soon(t),
			args...); !strings.Contains(r.Out, "expected to start at ") ||
			command == "show" && !strings.Contains(r.Out, "position   1: tenant red used ") {
			t.Errorf("%v has no expected start or position: %s", args, r.Out)
		}
	}
	for _, args := range [][]string{nil, {"--time", "2h"}} {
		if r := n.CLI(
			soon(t),
			append(append([]string{"run", "-q", "-t", "red", "--grant", "one"}, args...), "--", "true")...); r.Code != 125 ||
			!strings.Contains(r.Err, "claimed by an earlier request") {
			t.Errorf("%v ends with %d: %s", args, r.Code, r.Err)
		}
	}
	short := run("one", "--time", "30m")
	if err := short.AwaitLine(soon(t), "."); err != nil {
		t.Fatal(fmt.Errorf("a lease that ends before did not start: %w: %s", err, short.Output()))
	}
	short.Kill()
	first.Kill()
	awaitStatus(t, n, "the large request does not start", func(s *api.Status) bool {
		return len(s.Leases) == 1 && s.Leases[0].Grant == "two" && s.Leases[0].State == api.LeaseRunning
	})
}
