package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/hostile"
	"github.com/gpushare/gpushare/test/silentfs"
	"github.com/gpushare/gpushare/test/tracing"
)

// memoryLimit is half of what the unit of the daemon gets.
const memoryLimit = 256 << 20

// memoryCgroup is a memory cgroup for a daemon, of whichever version the host has.
type memoryCgroup struct{ dir, oomKills string }

// newMemoryCgroup makes the cgroup; nil without the right or the controller.
func newMemoryCgroup(t *testing.T) *memoryCgroup {
	t.Helper()
	name := fmt.Sprint("gpushare-hostile-", os.Getpid())
	var l *memoryCgroup
	v1 := "/sys/fs/cgroup/memory"
	h, err := cgroup.FindHierarchy()
	switch _, err1 := os.Stat(filepath.Join(v1, "memory.limit_in_bytes")); {
	case err1 == nil:
		l = &memoryCgroup{filepath.Join(v1, name), "memory.oom_control"}
	case err == nil:
		l = &memoryCgroup{h.Dir(name), "memory.events"}
	default:
		return nil
	}
	if os.Mkdir(l.dir, 0o755) != nil {
		return nil
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		// Its processes may still be ending.
		if err := harness.Await(ctx, 10*time.Millisecond, l.dir+" is not empty", func() (bool, error) {
			return !errors.Is(unix.Rmdir(l.dir), unix.EBUSY), nil
		}); err != nil {
			t.Error(err)
		}
	})
	for file, value := range map[string]int{"memory.limit_in_bytes": memoryLimit, "memory.max": memoryLimit, "memory.swap.max": 0} {
		f, err := os.OpenFile(filepath.Join(l.dir, file), os.O_WRONLY, 0)
		if err != nil {
			continue // of the other version
		}
		_, err = fmt.Fprint(f, value)
		if f.Close(); err == nil && file != "memory.swap.max" {
			return l
		}
	}
	return nil
}

// killed is how many processes in it were killed because its memory ran out.
func (l *memoryCgroup) killed(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(l.dir, l.oomKills))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no oom_kill", l.oomKills)
	return 0
}

// peak is the largest resident memory of a process so far, in bytes.
func peak(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// hostiles starts processes whose files are as long and as slow as a user can make them.
func hostiles(t *testing.T) (pids map[string]int) {
	t.Helper()
	pids = map[string]int{}
	for _, c := range hostile.Clients {
		if c.Process && c.Name != hostile.Descriptors && c.Name != hostile.Locked {
			pids[c.Name] = tracing.Run(t, hostile.Command(t, c.Name, c.N)).PID
		}
	}
	all := 0
	for all < 1<<20 {
		pid := tracing.Run(t, hostile.Command(t, hostile.Descriptors, 1<<20)).PID
		pids[hostile.Descriptors] = pid
		names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		if all += len(names); len(names) < 10000 {
			break
		}
	}
	t.Logf("some have %d descriptors together", all)
	dir, err := os.MkdirTemp("", "hostile")
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	fs, err := silentfs.Mount(dir, "file", 0)
	if err != nil {
		t.Logf("no process keeps the lock of its memory: %v", err)
		return pids
	}
	p := tracing.Run(t, hostile.LockedCommand(t, filepath.Join(dir, "file")))
	t.Cleanup(func() { // before it is killed
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	fs.Silence()
	p.CloseInput()
	pids[hostile.Locked] = p.PID
	return pids
}

// The daemon lives in a small part of its memory, and each request ends in time, next to processes of users whose files in /proc are
// as long and as slow as the kernel allows.
func TestHostileProcesses(t *testing.T) {
	enumeration.Long(t)
	l := newMemoryCgroup(t)
	n := newNode(t, quick)
	if l != nil {
		n.Before = []string{"/bin/sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(l.dir, "cgroup.procs")}
	} else {
		t.Log("without a memory cgroup the daemon is not killed at its limit: its largest memory is compared")
	}
	pids := hostiles(t)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	alive := func(after string) {
		t.Helper()
		select {
		case <-n.DaemonDone():
			t.Fatalf("after %s the daemon has ended\n%s", after, daemonLog(n))
		default:
		}
		now := peak(t, n.DaemonPID())
		t.Logf("after %s: at most %d MiB", after, now>>20)
		if now > memoryLimit {
			t.Errorf("after %s the daemon had %d MiB", after, now>>20)
		}
		if l != nil && l.killed(t) > 0 {
			t.Fatalf("after %s a process of the daemon was killed because its memory ran out", after)
		}
	}
	command := func(args ...string) harness.Result {
		t.Helper()
		r := n.CLI(soon(t), args...)
		if r.Code != 0 {
			t.Errorf("%v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
		}
		return r
	}
	apply(t, n, shared)
	alive("apply")
	for _, c := range hostile.Clients {
		program := c.Name
		pid, ok := pids[program]
		if !ok {
			continue
		}
		began := time.Now()
		id := attach(t, n, "--pid", fmt.Sprint(pid), "-t", "red", "--grant", "part")
		duration := time.Since(began)
		command("status")
		command("top", "-b", "-n", "1")
		command("explain", id)
		if c := leaseByID(status(t, n), id); c == nil || len(fmt.Sprint(c.Command)) > 8<<10 {
			t.Errorf("the lease of %s is %+v", program, c)
		} else if program == hostile.Memory && !strings.HasPrefix(strings.Join(c.Command, ""), hostile.Says) {
			t.Errorf("its command is %.40q", c.Command)
		}
		command("lease", "release", id)
		alive(fmt.Sprintf("an attach of %s in %v", program, duration.Round(time.Millisecond)))
	}
	apply(t, n, joined)
	awaitStatus(t, n, "MPS does not run", func(s *api.Status) bool { return s.GPUs[2].MPS != nil && s.GPUs[2].MPS.PID != 0 })
	alive("a start of MPS")
	command("mps", "restart", "2")
	alive("a restart of MPS")
	before := status(t, n).GPUs[2].MPS.PID
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "MPS does not run again", func(s *api.Status) bool {
		return s.GPUs[2].MPS != nil && s.GPUs[2].MPS.PID != 0 && s.GPUs[2].MPS.PID != before
	})
	alive("a failure of MPS")
	for range 3 {
		n.KillDaemon()
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		command("status")
		alive("a restart")
	}
	n.StopDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	command("doctor")
	apply(t, n, "version: v1\nnode: {enforce: on}\n")
	alive("a stop of MPS")
}
