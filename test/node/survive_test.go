package node

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// crowd starts and ends many leases, so that the daemon is killed during many kinds of work.
type crowd struct {
	n *harness.Node
	// pause is held for reading while a lease starts or ends, and for writing while leases are counted.
	pause   sync.RWMutex
	mu      sync.Mutex // guards the fields below
	started map[string]*harness.Job
	count   int
}

// member starts and ends leases until ctx is over.
func (c *crowd) member(ctx context.Context, tenant string, random *rand.Rand) error {
	for ctx.Err() == nil {
		if err := c.one(ctx, tenant, time.Duration(50+random.IntN(400))*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// one is one lease that runs for this time. Without a daemon it is refused, which is no error.
func (c *crowd) one(ctx context.Context, tenant string, life time.Duration) error {
	script := `echo "lease=$GPUSHARE_LEASE."; exec ` + strings.Join(c.n.Burn("--memory", "64MiB", "--kernel", "2ms", "--queue", "8"), " ")
	c.pause.RLock()
	job, err := c.n.Run("-q", "-t", tenant, "--grant", "part", "--", "sh", "-c", script)
	if err != nil {
		c.pause.RUnlock()
		return err
	}
	id, started := "", false
	if job.AwaitLine(ctx, ".") == nil {
		_, rest, _ := strings.Cut(job.Output(), "lease=")
		id, _, started = strings.Cut(rest, ".")
	}
	if started {
		c.mu.Lock()
		c.started[id] = job
		c.count++
		c.mu.Unlock()
	}
	c.pause.RUnlock()
	select {
	case <-time.After(life): // This is the load, not a wait.
	case <-job.Done():
	case <-ctx.Done():
	}
	c.pause.RLock()
	defer c.pause.RUnlock()
	job.Kill()
	c.mu.Lock()
	defer c.mu.Unlock()
	if started && job.Code() != -int(syscall.SIGKILL) {
		return fmt.Errorf("lease %s ended by itself with %d: %s", id, job.Code(), job.Output())
	}
	delete(c.started, id)
	return nil
}

// living returns the pids of the running leases whose id a client got, by id.
func (c *crowd) living() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for id, job := range c.started {
		select {
		case <-job.Done():
		default:
			out[id] = job.PID()
		}
	}
	return out
}

// The daemon is killed repeatedly while leases start, run, are frozen and end. Every lease whose id a client got runs on and is
// recovered, ended leases are not, and no process stays frozen.
func TestLeasesSurviveKills(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, small)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ctx, stop := context.WithCancel(soon(t))
	c := &crowd{n: n, started: map[string]*harness.Job{}}
	var group sync.WaitGroup
	// Two leases share the GPU for the whole test, so that one is frozen most of the time.
	for _, tenant := range []string{"red", "blue"} {
		group.Go(func() {
			if err := c.one(ctx, tenant, time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range uint64(3) {
		group.Go(func() {
			if err := c.member(ctx, []string{"red", "blue"}[i%2], rand.New(rand.NewPCG(seed, i))); err != nil {
				t.Error(err)
			}
		})
	}
	defer group.Wait()
	defer stop()
	random := rand.New(rand.NewPCG(seed, 99))
	rounds, freezes := 8, uint64(0)
	if enumeration.Sampled() {
		rounds = 3
	}
	for round := range rounds {
		<-time.After(time.Duration(100+random.IntN(500)) * time.Millisecond) // A random delay before the kill.
		if round%2 == 1 && os.Geteuid() == 0 {
			awaitFreeze(t, n)
		}
		if counters, err := n.Client().Counters(soon(t)); err == nil {
			freezes += counters["freezes"]
		}
		n.KillDaemon()
		if round%2 == 1 {
			thawed(t, n) // The daemon does not run: gpushare-thaw must thaw.
		}
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		c.pause.Lock()
		c.counted(t)
		c.pause.Unlock()
		if t.Failed() {
			t.Fatal(daemonLog(n))
		}
	}
	n.StopDaemon()
	thawed(t, n)
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	stop()
	group.Wait()
	c.counted(t)
	t.Logf("%d leases, %d freezes", c.count, freezes)
	if freezes == 0 && os.Geteuid() == 0 {
		t.Error("no process was ever frozen, so the test shows nothing")
	}
	if c.count < rounds {
		t.Errorf("only %d leases were started: the load is too low", c.count)
	}
}

// awaitFreeze waits until the daemon has frozen a lease: the first seconds of its run it measures what each lease uses, side by side.
func awaitFreeze(t *testing.T, n *harness.Node) {
	t.Helper()
	if err := harness.Await(soon(t), 20*time.Millisecond, "no lease is frozen", func() (bool, error) {
		counters, err := n.Client().Counters(soon(t))
		return counters["freezes"] > 0, err
	}); err != nil {
		t.Fatal(err)
	}
}

// counted waits until the leases of the daemon are exactly the running ones.
func (c *crowd) counted(t *testing.T) {
	t.Helper()
	want := c.living()
	err := harness.Await(soon(t), 10*time.Millisecond, "the leases differ from the running processes", func() (bool, error) {
		s, err := c.n.Client().Status(soon(t))
		if err != nil {
			return false, err
		}
		have := map[string]int{}
		for i := range s.Leases {
			if l := &s.Leases[i]; l.State == api.LeaseRunning {
				have[l.ID] = l.PID
			}
		}
		for id, pid := range want {
			if have[id] != pid {
				return false, fmt.Errorf("pid %d got lease %s, and the daemon does not know it: %v", pid, id, have)
			}
		}
		if len(s.Leases) != len(want) {
			return false, fmt.Errorf("%d leases are known, %d live: %v and %v", len(s.Leases), len(want), have, want)
		}
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// thawed waits until no process of the node is frozen. It needs no daemon.
func thawed(t *testing.T, n *harness.Node) {
	t.Helper()
	if os.Geteuid() != 0 {
		return // Nothing is frozen without cgroups.
	}
	top := filepath.Join(unified(t), n.Subtree())
	err := harness.Await(soon(t), 20*time.Millisecond, "a process stays frozen", func() (bool, error) {
		var frozen []string
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.freeze" {
				return nil // Cgroups are removed meanwhile.
			}
			if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) != "0" {
				frozen = append(frozen, path)
			}
			return nil
		})
		if err != nil {
			return false, err
		}
		if len(frozen) > 0 {
			return false, fmt.Errorf("frozen: %v", frozen)
		}
		return true, nil
	})
	if err != nil {
		t.Errorf("%v\n%s", err, daemonLog(n))
	}
}

// unified is where the version 2 hierarchy of cgroups is mounted.
func unified(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if head, tail, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(tail, "cgroup2 ") {
			return strings.Fields(head)[4]
		}
	}
	t.Skip("no cgroup version 2 is mounted")
	return ""
}
