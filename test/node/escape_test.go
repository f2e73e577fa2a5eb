package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// escapeFixture is a lease of an ordinary user whose processes are moved out of it. A tenant's service manager does that with
// AttachProcessesToUnit; here root writes cgroup.procs.
type escapeFixture struct {
	t      *testing.T
	n      *harness.Node
	top    string // where the hierarchy is mounted
	job    *harness.Job
	id     string
	events *eventStream
}

// become changes a job of root to an ordinary user.
const become = "setpriv --reuid 65534 --regid 65534 --clear-groups "

// startEscape starts a lease whose script first prints the pids of its children.
func startEscape(t *testing.T, n *harness.Node, script string) *escapeFixture {
	t.Helper()
	x := &escapeFixture{t: t, n: n, top: unified(t), events: follow(t, n)}
	x.job, x.id = begin(t, n, "red", "part", become+"sh -c '"+script+"'")
	return x
}

// pids waits for the line that names the job's children.
func (x *escapeFixture) pids() []int {
	x.t.Helper()
	if err := x.job.AwaitLine(soon(x.t), " here"); err != nil {
		x.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(x.job.Output(), "pids ")
	var out []int
	for _, f := range strings.Fields(strings.Split(rest, " here")[0]) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			x.t.Fatal(err)
		}
		out = append(out, pid)
	}
	return out
}

// move takes a process out of its lease.
func (x *escapeFixture) move(pid int) {
	x.t.Helper()
	if err := os.WriteFile(filepath.Join(x.top, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		x.t.Fatal(err)
	}
}

// searchesOutside is how many searches may end while a process runs outside: one that began before it left, the one that finds it, and
// one until it has ended. They are counted, because a search takes as long as a busy host makes it.
const searchesOutside = 3

// searches is how many searches for such processes have ended.
func (x *escapeFixture) searches() (uint64, error) {
	all, err := x.n.Client().Counters(x.t.Context())
	if n, ok := all["escape.searches"]; ok {
		return n, err
	}
	return 0, fmt.Errorf("searches are not counted: %w", err)
}

// awaitEnded waits until a process that has left has ended, and fails if more searches than searchesOutside end before.
func (x *escapeFixture) awaitEnded(what string, pid int, since time.Time) {
	x.t.Helper()
	first, err := x.searches()
	if err != nil {
		x.t.Fatal(err)
	}
	survived := uint64(0)
	err = harness.Await(soon(x.t), 20*time.Millisecond, what+" still runs", func() (bool, error) {
		n, err := x.searches() // before the process is read: it runs after them
		if st, ended := procfs.Read(pid); err != nil || ended != nil || st.Dead() {
			return true, err
		}
		survived = n - first
		return survived > searchesOutside, nil
	})
	if err != nil || survived > searchesOutside {
		x.t.Fatalf("%s ran after %d searches: %v\n%s", what, survived, err, daemonLog(x.n))
	}
	x.t.Logf("%s ended %.2f s after the escape", what, time.Since(since).Seconds())
}

func escapeNode(t *testing.T) *harness.Node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("leases are cgroups only for root")
	}
	unified(t)
	n := start(t, quick)
	apply(t, n, shared)
	return n
}

// An escaped process is found and killed, however it escaped. Members of a lease and other processes are not affected.
func TestEscape(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)

	t.Run("the job itself", func(t *testing.T) {
		x := startEscape(t, n, "exec sleep 60")
		began := time.Now()
		x.move(x.job.PID())
		x.awaitEnded("the job", x.job.PID(), began)
		e := x.events.await(t, "lease.escaped", x.id)
		if !strings.Contains(e.Message, strconv.Itoa(x.job.PID())) || !strings.Contains(e.Message, "it was killed") || e.Tenant != "red" {
			t.Errorf("the event is %+v", e)
		}
		x.events.await(t, "lease.ended", x.id)
	})

	t.Run("a frozen job, by its sibling", func(t *testing.T) {
		x := startEscape(t, n, `sleep 60 >/dev/null 2>&1 & echo "pids $! here"; wait`)
		child := x.pids()[0]
		leaf := x.leaf()
		if err := os.WriteFile(filepath.Join(leaf, "cgroup.freeze"), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		x.move(x.job.PID())
		x.awaitEnded("the job", x.job.PID(), began)
		if err := os.WriteFile(filepath.Join(leaf, "cgroup.freeze"), []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := procfs.Read(child); err != nil {
			t.Errorf("the sibling that stayed has ended: %v", err)
		}
	})

	t.Run("a child in a session of its own, and its children", func(t *testing.T) {
		// The child starts another one after a signal from outside.
		go1 := filepath.Join(t.TempDir(), "go")
		open(t, filepath.Dir(go1))
		x := startEscape(t, n, `setsid sh -c "while ! [ -e `+go1+` ]; do sleep 0.02; done; sleep 61 & wait" >/dev/null 2>&1 & wait`)
		var child int
		if err := harness.Await(soon(t), 10*time.Millisecond, "no child", func() (bool, error) {
			kids, err := children(x.job.PID())
			if err == nil && len(kids) == 1 {
				child = kids[0]
			}
			return child != 0, err
		}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		x.move(child)
		if err := os.WriteFile(go1, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		x.awaitEnded("the child", child, began)
		if kids, err := children(x.job.PID()); err != nil || len(kids) > 0 {
			t.Errorf("children are left: %v, %v", kids, err)
		}
		// No grandchild is left, whether it started before its parent was found or after.
		if err := harness.Await(soon(t), 10*time.Millisecond, "the grandchild is running", func() (bool, error) {
			all, err := procfs.All()
			for _, s := range all {
				if s.Session == child && !s.Dead() {
					return false, nil
				}
			}
			return true, err
		}); err != nil {
			t.Error(err)
		}
	})

	t.Run("other processes, root and processes with their own lease are not stopped", func(t *testing.T) {
		other, err := n.Run("-q", "-t", "red", "--grant", "part", "--", "sleep", "60")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Kill)
		x := &escapeFixture{t: t, n: n, top: unified(t), events: follow(t, n)}
		inner := filepath.Join(
			n.Bin, "gpushare",
		) + " run -q -t red --grant part -- sh -c 'echo pids \\$\\$ here; exec sleep 60 >/dev/null 2>&1'"
		x.job, x.id = begin(t, n, "red", "part", "sh", "-c", `"`+inner+` & wait"`)
		nested := x.pids()[0]
		roots := x.job.PID() // It runs as root.
		x.move(roots)
		e := x.events.await(t, "lease.escaped", x.id)
		if !strings.Contains(e.Message, "belongs to root") {
			t.Errorf("the event is %+v", e)
		}
		// Two more scans.
		for range 2 {
			before := time.Now()
			y := startEscape(t, n, "exec sleep 60")
			y.move(y.job.PID())
			y.awaitEnded("another job", y.job.PID(), before)
		}
		for what, pid := range map[string]int{"root's process": roots, "the process with its own lease": nested, "another process": other.PID()} {
			if st, err := procfs.Read(pid); err != nil || st.Dead() {
				t.Errorf("%s was ended: %v\n%s", what, err, daemonLog(n))
			}
		}
	})
}

// leaf is the directory of the cgroup of the job.
func (x *escapeFixture) leaf() string {
	x.t.Helper()
	cg, err := procfs.Cgroup(x.job.PID())
	if err != nil {
		x.t.Fatal(err)
	}
	return filepath.Join(x.top, cg)
}

// A process that escapes while the daemon does not run is found by the next daemon, because the first process of a lease is on
// record.
func TestEscapeWhileTheDaemonIsDown(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	x := startEscape(t, n, "exec sleep 60")
	n.KillDaemon()
	x.move(x.job.PID())
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	x.awaitEnded("the job", x.job.PID(), time.Now())
}

// children lists the process's children that have not ended.
func children(pid int) ([]int, error) {
	all, err := procfs.All()
	var kids []int
	for _, s := range all {
		if s.PPID == pid && !s.Dead() {
			kids = append(kids, s.PID)
		}
	}
	return kids, err
}
