package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// The ways to start a process that nothing seems to connect with the lease: its parents have ended, or never were in the lease,
// and it is in a session of its own.
var forks = map[string]func(p *probe) (pid int, err error){
	// It forks, calls setsid twice, and the process in the middle ends.
	"daemon": func(*probe) (pid int, err error) {
		out, err := exec.Command("setsid", "sh", "-c", "setsid sleep 600 <&- >&- 2>&- & echo $!").Output()
		if err == nil {
			_, err = fmt.Sscan(string(out), &pid)
		}
		return pid, err
	},
	// clone with CLONE_PARENT makes a child of its own parent, which is outside of the lease.
	"sibling": func(*probe) (int, error) {
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT, Setsid: true}
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil // It is not its child.
	},
	// The same among many that end at once.
	"among many": func(*probe) (pid int, err error) {
		out, err := exec.Command(
			"sh", "-c", "for i in $(seq 60); do (exec true) & done; setsid sh -c 'setsid sleep 600 <&- >&- 2>&- & echo $!'; wait",
		).Output()
		if err == nil {
			_, err = fmt.Sscan(string(out), &pid)
		}
		return pid, err
	},
	// It is the first process of a pid namespace, whose pids are others.
	"pid namespace": func(*probe) (int, error) {
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID, Setsid: true}
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	},
	// The same from a process whose parent is init, or the user's service manager.
	"sibling by an orphan": func(*probe) (pid int, err error) {
		cmd := exec.Command("sh", "-c", `"$0" $$ &`, os.Args[0])
		cmd.Env = append(os.Environ(), probeEnv+`={"Fork":"sibling of an orphan"}`)
		out, err := cmd.Output()
		if err == nil {
			_, err = fmt.Sscan(string(out), &pid)
		}
		return pid, err
	},
}

// escapes is how many processes leave in each way.
const escapes = 34

// fork starts processes, one for each round.
func (p *probe) fork() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if p.Fork == "sibling of an orphan" {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		parent, err := strconv.Atoi(os.Args[1])
		fail(err)
		fail(harness.Await(ctx, time.Millisecond, "its parent still runs", func() (bool, error) { return os.Getppid() != parent, nil }))
		pid, err := forks["sibling"](p)
		fail(err)
		fmt.Println(pid)
		return
	}
	out, err := os.OpenFile(p.Socket, os.O_WRONLY, 0)
	fail(err)
	for range escapes {
		pid, err := forks[p.Fork](p)
		fail(err)
		_, err = fmt.Fprintln(out, pid)
		fail(err)
	}
	fail(out.Close())
}

// A process that leaves its lease before anybody looked at it is found and ended, however it was forked, also when its lease has
// ended: no lookup by parent, session or earlier membership would find it.
func TestEscapeOfADescendantThatWasNeverSeen(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	for way := range forks {
		t.Run(way, func(t *testing.T) {
			x := &escapeFixture{t: t, n: n, top: unified(t), events: follow(t, n)}
			pipe := filepath.Join(t.TempDir(), "pids")
			if err := unix.Mkfifo(pipe, 0o622); err != nil {
				t.Fatal(err)
			}
			open(t, filepath.Dir(pipe))
			if err := os.Chmod(pipe, 0o622); err != nil { // The umask has no part in it.
				t.Fatal(err)
			}
			text, err := json.Marshal(probe{Socket: pipe, Fork: way})
			if err != nil {
				t.Fatal(err)
			}
			x.job, x.id = begin(t, n, "red", "part", become+"env '"+probeEnv+"="+string(text)+"' "+program)
			in, err := os.Open(pipe)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			// Each process is watched from when it left: until the last one does, a loaded host takes a while.
			type outcome struct {
				lasted time.Duration
				err    error
			}
			outcomes, left := make(chan outcome, escapes), 0
			var searches atomic.Uint64
			count := func() uint64 {
				n, err := x.searches()
				if err != nil {
					t.Fatal(err)
				}
				searches.Store(n)
				return n
			}
			for lines := bufio.NewScanner(in); lines.Scan(); left++ {
				var pid int
				if _, err := fmt.Sscan(lines.Text(), &pid); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // It has ended.
				x.move(pid)
				since, ctx, first := time.Now(), soon(t), count()
				go func() {
					survived := uint64(0)
					err := harness.Await(ctx, 5*time.Millisecond, "a process still runs", func() (bool, error) {
						n := searches.Load() // before the process is read: it runs after them
						if st, err := procfs.Read(pid); err != nil || st.Dead() {
							return true, nil
						}
						survived = max(n, first) - first
						return survived > searchesOutside, nil
					})
					if survived > searchesOutside {
						err = fmt.Errorf("pid %d ran after %d searches", pid, survived)
					}
					outcomes <- outcome{time.Since(since), err}
				}()
			}
			if out := x.job.Output(); left == 0 && strings.Contains(out, "operation not permitted") {
				t.Skip("this host allows a user no namespace: ", out)
			}
			if left != escapes {
				t.Fatalf("%d processes left the lease\n%s", left, x.job.Output())
			}
			slowest := time.Duration(0)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for got := 0; got < escapes; {
				var o outcome
				select {
				case <-tick.C:
					count()
					continue
				case o = <-outcomes:
					got++
				}
				if o.err != nil {
					t.Errorf("%v\n%s", o.err, daemonLog(n))
				}
				slowest = max(slowest, o.lasted)
			}
			t.Logf("%d of %d ended, the last one %.2f s after it left", escapes, escapes, slowest.Seconds())
			x.events.await(t, "lease.ended", x.id)
		})
	}
}

// A process that left while the daemon did not run is found by the next one, although its lease ended meanwhile and nothing of it
// is known but the record in the kernel.
func TestEscapeOfADescendantWhileTheDaemonIsDown(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	x := startEscape(t, n, `setsid sh -c "setsid sleep 600 <&- >&- 2>&- & echo pids \$! here" ; exec sleep 60`)
	child := x.pids()[0]
	n.KillDaemon()
	x.move(child)
	x.job.Kill()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	x.awaitEnded("the descendant", child, time.Now())
}

// Processes that fork at a high rate outside of leases are not touched, and no pass takes them for descendants.
func TestForksOfOtherProgramsAreNotEscapes(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	other := exec.Command("sh", "-c", become+"sh -c 'for i in $(seq 2000); do (exec true) & done; wait; echo done'")
	x := startEscape(t, n, "exec sleep 60")
	out, err := other.Output()
	if err != nil || !strings.HasPrefix(string(out), "done") {
		t.Errorf("%q, %v", out, err)
	}
	began := time.Now()
	x.move(x.job.PID())
	x.awaitEnded("the job", x.job.PID(), began)
	if log := daemonLog(n); strings.Count(log, "a process left its lease") != 1 {
		t.Errorf("not only the job left its lease:\n%s", log)
	}
}

// Nothing of a lease is left in the record when it has ended.
func TestRecordEndsWithTheLease(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	job, id := begin(t, n, "red", "part", become+"sleep 60")
	if !slices.Contains(recorded(t, n, id), job.PID()) {
		t.Fatalf("pid %d is not recorded: %v", job.PID(), recorded(t, n, id))
	}
	if out := n.CLI(soon(t), "lease", "stop", id); out.Code != 0 {
		t.Fatal(out)
	}
	if err := harness.Await(soon(t), 10*time.Millisecond, "the lease is still recorded", func() (bool, error) {
		return len(recorded(t, n, id)) == 0, nil
	}); err != nil {
		t.Error(err)
	}
	n.StopDaemon()
	if _, err := os.Stat(n.RecordDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a record of no process is pinned: %v", err)
	}
}

// Processes of a lease that are not recorded, as those from before there was a record, are recorded by the next pass: what they start
// from then on is found when it leaves.
func TestProcessesOfALeaseAreRecordedLater(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	begins := filepath.Join(t.TempDir(), "begins")
	open(t, filepath.Dir(begins))
	x := startEscape(
		t,
		n,
		`while ! [ -e `+begins+` ]; do sleep 0.02; done; setsid sh -c "setsid sleep 600 <&- >&- 2>&- & echo pids \$! here"; exec sleep 60`,
	)
	record := pinnedRecord(t, n)
	pid := uint32(x.job.PID())
	if err := record.Delete(pid); err != nil {
		t.Fatal(err)
	}
	if err := harness.Await(soon(t), 10*time.Millisecond, "its process is not recorded again", func() (bool, error) {
		return slices.Contains(recorded(t, n, x.id), x.job.PID()), nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(begins, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	child, began := x.pids()[0], time.Now()
	x.move(child)
	x.awaitEnded("the descendant", child, began)
}

// A record that ended with its daemon, because it could not be pinned, is a condition that names the leases from before; it passes with
// them. What was inside when the daemon started is found when it leaves.
func TestALeaseFromBeforeTheRecord(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)
	x := startEscape(t, n, `setsid sh -c "setsid sleep 600 <&- >&- 2>&- & echo pids \$! here" ; exec sleep 60`)
	child := x.pids()[0]
	n.KillDaemon()
	entries, err := os.ReadDir(n.RecordDir())
	if err != nil || len(entries) == 0 {
		t.Fatalf("the record is not pinned: %v, %v", entries, err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(n.RecordDir(), e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	condition := func() string {
		for _, c := range status(t, n).Node.Conditions {
			if c.Kind == "escape" {
				return c.Message
			}
		}
		return ""
	}
	if err := harness.Await(soon(t), 10*time.Millisecond, "no condition names the lease", func() (bool, error) {
		return strings.Contains(condition(), "they started before the record: "+x.id), nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := harness.Await(soon(t), 10*time.Millisecond, "the process inside is not recorded", func() (bool, error) {
		return slices.Contains(recorded(t, n, x.id), child), nil
	}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	x.move(child)
	x.awaitEnded("the descendant", child, began)
	x.job.Kill()
	if err := harness.Await(
		soon(t), 10*time.Millisecond, "the condition remains", func() (bool, error) { return condition() == "", nil },
	); err != nil {
		t.Error(err)
	}
}

// No other program of the host sees that the daemon runs and follows the processes of leases, in what it reads of its own cgroups and
// mounts. Slurm, among others, reads both and does not start next to a hierarchy that it does not know.
func TestNothingOfTheDaemonIsInCgroupsAndMountsOfOthers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("leases are cgroups only for root")
	}
	unified(t)
	other := exec.Command("cat") // It runs before the daemon does.
	in, err := other.StdinPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = in.Close(), other.Wait() })
	// Other tests have mounts of their own, whose directories are those of their nodes.
	mounts := func(n *harness.Node) (found []string) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", other.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, n.Dir) {
				found = append(found, line)
			}
		}
		return found
	}
	n := start(t, quick)
	n.StopDaemon()
	before, cgroups := mounts(n), procfstest.CgroupsOf(t, other.Process.Pid)
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, shared)
	job, id := begin(t, n, "red", "part", become+"sleep 60")
	if !slices.Contains(recorded(t, n, id), job.PID()) {
		t.Errorf("pid %d is not recorded", job.PID())
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", job.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(own)) {
		if strings.Contains(line, n.Subtree()) && !strings.HasPrefix(line, "0::") {
			t.Errorf("a process of a lease is in a cgroup of another hierarchy: %s", line)
		}
	}
	if after := mounts(n); !slices.Equal(before, after) {
		t.Errorf("before the daemon ran the mounts were %q, now they are %q", before, after)
	}
	if changed := cgroups.Changed(procfstest.CgroupsOf(t, other.Process.Pid)); changed != "" {
		t.Error(changed)
	}
}

// The processes of a lease are counted to its user, of whom the record takes a part of what it has for all.
func TestProcessesAreCountedToTheUserOfTheirLease(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	_, id := begin(t, n, "red", "part", `sh -c "sleep 600 <&- >&- 2>&- & sleep 600 <&- >&- 2>&- & wait"`)
	users, uid := mapOf(t, n, "gpushare_users"), uint32(os.Geteuid())
	counted := func() (n int64) {
		if err := users.Lookup(uid, &n); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
		return n
	}
	if err := harness.Await(
		soon(t), 10*time.Millisecond, "not all processes are counted", func() (bool, error) { return counted() >= 3, nil },
	); err != nil {
		t.Fatal(err)
	}
	if out := n.CLI(soon(t), "lease", "stop", id); out.Code != 0 {
		t.Fatal(out)
	}
	if err := harness.Await(
		soon(t), 10*time.Millisecond, "its processes are still counted", func() (bool, error) { return counted() == 0, nil },
	); err != nil {
		t.Error(err)
	}
}

// mapOf opens a map of the daemon that is not pinned.
func mapOf(t *testing.T, n *harness.Node, name string) *ebpf.Map {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fdinfo", n.DaemonPID())
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // It was closed.
		}
		for line := range strings.Lines(string(b)) {
			text, ok := strings.CutPrefix(line, "map_id:")
			if !ok {
				continue
			}
			id, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			m, err := ebpf.NewMapFromID(ebpf.MapID(id))
			if err != nil {
				t.Fatal(err)
			}
			if info, err := m.Info(); err == nil && info.Name == name {
				t.Cleanup(func() { _ = m.Close() })
				return m
			}
			_ = m.Close()
		}
	}
	t.Fatalf("the daemon has no map %s", name)
	return nil
}

// pinnedRecord opens the kernel's record of a node.
func pinnedRecord(t *testing.T, n *harness.Node) *ebpf.Map {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(n.RecordDir(), "members"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// recorded lists the processes that the kernel has recorded for a lease.
func recorded(t *testing.T, n *harness.Node, id string) (pids []int) {
	t.Helper()
	m := pinnedRecord(t, n)
	var pid uint32
	var entry [48]byte
	all := m.Iterate()
	for all.Next(&pid, &entry) {
		if strings.TrimRight(string(entry[8:]), "\x00") == id {
			pids = append(pids, int(pid))
		}
	}
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // Others end meanwhile.
		t.Fatal(err)
	}
	return pids
}
