package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// manyLeases is the number of leases that are started and stopped at once: what root may have, or another user.
func manyLeases() int {
	if os.Geteuid() != 0 {
		return 96 // at once, of one user: docs/security.md
	}
	return 200
}

// firstAct is the first action of every job: it prints its cgroup and, with device rules, whether it can open the GPU of another
// lease.
const firstAct = `grep ^0:: /proc/self/cgroup
case $( (exec 3<%s/dev/nvidia3) 2>&1) in *permitted*|*denied*) echo denied;; *) echo open;; esac
echo "lease=$GPUSHARE_LEASE."
exec sleep 600`

// sampler reads the cgroups of the jobs while they run: a process that executes its command must be in the cgroup of its lease.
type sampler struct {
	under string // the parent of the cgroups of leases; empty without cgroups

	mu      sync.Mutex // guards the fields below
	pids    map[int]bool
	samples int
	outside []string
}

func (s *sampler) watch(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids[pid] = true
}

func (s *sampler) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		pids := make([]int, 0, len(s.pids))
		for pid := range s.pids {
			pids = append(pids, pid)
		}
		s.mu.Unlock()
		for _, pid := range pids {
			s.sample(pid)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond): // The sample interval.
		}
	}
}

// sample reads the executable of a process before its cgroup: the process is moved before it executes its command.
func (s *sampler) sample(pid int) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || strings.HasPrefix(filepath.Base(exe), "gpushare") { // the client, before it executes its command
		return
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return // It ended.
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples++
	if at := unifiedPath(string(b)); !strings.HasPrefix(at, s.under) || !strings.HasSuffix(at, ".scope/run") {
		s.outside = append(s.outside, fmt.Sprintf("%d (%s) in %s", pid, filepath.Base(exe), at))
	}
}

// unifiedPath returns the path in the version 2 hierarchy from the text of /proc/PID/cgroup.
func unifiedPath(text string) string {
	for line := range strings.Lines(text) {
		if at, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return at
		}
	}
	return ""
}

// Many leases start, run and end concurrently: none is lost, none is ever outside its cgroup, and nothing is left.
func TestManyLeasesAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts 200 processes")
	}
	many := manyLeases()
	n := start(t, quick)
	apply(t, n, strings.ReplaceAll(shared, "gpu_memory: 8GiB}}", "gpu_memory: 8GiB}, max_leases: 200}"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	devices, under := isolationHere(t, n)
	cgroups := under != ""
	s := &sampler{pids: map[int]bool{}, under: under}
	sampling, stopSampling := context.WithCancel(ctx)
	var sampler sync.WaitGroup
	if cgroups {
		sampler.Go(func() { s.run(sampling) })
	}
	defer sampler.Wait()
	defer stopSampling()

	began := time.Now()
	jobs, ids := make([]*harness.Job, many), make([]string, many)
	var starting sync.WaitGroup
	for i := range many {
		starting.Go(func() {
			job, err := n.Run("-q", "-t", "red", "--grant", "part", "--", "sh", "-c", fmt.Sprintf(firstAct, n.Root()))
			if err != nil {
				t.Error(err)
				return
			}
			jobs[i] = job
			s.watch(job.PID())
			if err := job.AwaitLine(ctx, ".\n"); err != nil {
				t.Error(err)
				return
			}
			_, rest, _ := strings.Cut(job.Output(), "lease=")
			ids[i], _, _ = strings.Cut(rest, ".\n")
		})
	}
	starting.Wait()
	defer func() {
		for _, j := range jobs {
			if j != nil {
				j.Kill()
			}
		}
	}()
	t.Logf("%d leases run after %s", many, time.Since(began).Round(time.Millisecond))
	if t.Failed() {
		return
	}
	st := status(t, n)
	if len(st.Leases) != many {
		t.Errorf("%d of %d leases are listed", len(st.Leases), many)
	}
	for i, job := range jobs {
		l := leaseByID(st, ids[i])
		if l == nil || l.PID != job.PID() || l.State != api.LeaseRunning {
			t.Fatalf("job %d of lease %q is %+v: %s", job.PID(), ids[i], l, job.Output())
		}
		at := unifiedPath(job.Output())
		if cgroups && at != l.Isolation.Cgroup {
			t.Errorf("the first act of lease %s was in %s, its cgroup is %s", l.ID, at, l.Isolation.Cgroup)
		}
		if devices && !strings.Contains(job.Output(), "\ndenied\n") {
			t.Errorf("the first act of lease %s opened the GPU of another lease: %s", l.ID, job.Output())
		}
	}

	began = time.Now()
	var stopping sync.WaitGroup
	for i, job := range jobs {
		stopping.Go(func() {
			if i%2 == 0 {
				job.Kill()
			} else if err := n.Client().StopLease(ctx, ids[i]); err != nil {
				t.Errorf("lease %s is not stopped: %v", ids[i], err)
			}
		})
	}
	stopping.Wait()
	awaitStatus(t, n, "leases are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
	t.Logf("they ended after %s", time.Since(began).Round(time.Millisecond))
	stopSampling()
	sampler.Wait()
	if cgroups {
		if len(s.outside) > 0 || s.samples < many {
			t.Errorf("%d samples, and %d processes outside their cgroup: %v", s.samples, len(s.outside), s.outside[:min(5, len(s.outside))])
		}
		left, err := filepath.Glob(filepath.Join(unified(t), s.under, "*.scope"))
		if err != nil || len(left) > 0 {
			t.Errorf("cgroups are left: %v, %v", left, err)
		}
		t.Logf("%d samples", s.samples)
	}
	recorded := min(many+1, 200) // with that of isolationHere; the most that are kept of one user
	if all, err := n.Client().Leases(ctx, true); err != nil || len(all) != recorded {
		t.Errorf("%d leases are on record, want %d: %v", len(all), recorded, err)
	}
}

// isolationHere reports whether leases have device rules here, and the parent of their cgroups.
func isolationHere(t *testing.T, n *harness.Node) (devices bool, under string) {
	t.Helper()
	job, id := begin(t, n, "red", "part", "sleep", "60")
	l := leaseByID(status(t, n), id)
	if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
		t.Fatal(r.Err)
	}
	job.Kill()
	if l.Isolation.Cgroup == "" {
		return false, ""
	}
	scope := filepath.Dir(l.Isolation.Cgroup)
	return l.Isolation.Devices && n.RealNodes, filepath.Dir(scope) + "/"
}

// Many detached leases start while the daemon is killed: every id that a client got is a running lease.
func TestManyDetachedWhileTheDaemonDies(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts many processes")
	}
	n := start(t, quick)
	apply(t, n, strings.ReplaceAll(shared, "gpu_memory: 8GiB}}", "gpu_memory: 8GiB}, max_leases: 200}"))
	dir := t.TempDir()
	const count = 40
	ids := make([]string, count)
	var starting sync.WaitGroup
	for i := range count {
		starting.Go(func() {
			args := []string{
				"run",
				"-q",
				"--detach",
				"-t",
				"red",
				"--grant",
				"part",
				"--",
				"sh",
				"-c",
				fmt.Sprintf("echo x >>%s/%d; exec sleep 600", dir, i),
			}
			r := n.CLI(soon(t), args...)
			for strings.Contains(r.Err, "cannot reach") { // No daemon was running: nothing was requested.
				r = n.CLI(soon(t), args...)
			}
			if r.Code != 0 {
				t.Errorf("run --detach exits with %d: %s", r.Code, r.Err)
			}
			ids[i] = strings.TrimSpace(r.Out)
		})
	}
	for range 3 {
		if err := harness.Await(soon(t), time.Millisecond, "no job starts", func() (bool, error) {
			entries, err := os.ReadDir(dir)
			return len(entries) > 0, err
		}); err != nil {
			t.Fatal(err)
		}
		n.KillDaemon()
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	starting.Wait()
	st := status(t, n)
	seen := map[string]bool{}
	for i, id := range ids {
		l := leaseByID(st, id)
		if l == nil || l.State != api.LeaseRunning || seen[id] {
			t.Errorf("job %d has lease %q: %+v", i, id, l)
		}
		seen[id] = true
		var b []byte
		err := harness.Await(
			soon(t),
			10*time.Millisecond,
			"it does not begin",
			func() (bool, error) { // A lease runs before its program has done anything.
				var err error
				if b, err = os.ReadFile(filepath.Join(dir, fmt.Sprint(i))); errors.Is(err, fs.ErrNotExist) {
					err = nil
				}
				return len(b) > 0, err
			},
		)
		if err != nil || string(b) != "x\n" {
			t.Errorf("job %d was started %d times: %v", i, strings.Count(string(b), "x"), err)
		}
	}
	if len(st.Leases) != count {
		t.Errorf("%d leases, want %d", len(st.Leases), count)
	}
	var stopping sync.WaitGroup
	for _, id := range ids {
		stopping.Go(func() {
			if err := n.Client().StopLease(soon(t), id); err != nil {
				t.Errorf("lease %s is not stopped: %v", id, err)
			}
		})
	}
	stopping.Wait()
	awaitStatus(t, n, "leases are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
}
