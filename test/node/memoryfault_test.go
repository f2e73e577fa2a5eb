package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// The daemon, its worker or gpushare-thaw is killed or stopped at each point of the stop of a lease. No process stays frozen,
// the neighbour runs on, the lease is never killed without SIGTERM and its grace, and its memory is given to the next lease only
// after its end.
func TestMemoryFaultPoints(t *testing.T) {
	enumeration.Long(t)
	needsFreezer(t)
	dir := buildWithFaults(t)
	cases := 0
	for _, point := range []string{"stop.before-term", "stop.after-term", "stop.before-kill", "stop.after-kill"} {
		for _, victim := range []string{"daemon", "worker", "gpushare-thaw"} {
			for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
				if cases++; !enumeration.Runs(cases-1, 5) {
					continue
				}
				t.Run(fmt.Sprintf("%s %s %v", point, victim, sig), func(t *testing.T) { memoryFault(t, dir, point, victim, sig) })
			}
		}
	}
}

func memoryFault(t *testing.T, bin, point, victim string, sig syscall.Signal) {
	n := newNode(t, twoGPUs)
	n.Bin = bin
	n.Settings = map[string]string{"driver_read_timeout": "2s"}
	stamp := filepath.Join(t.TempDir(), "stamp")
	action := "stop"
	if victim == "daemon" && sig == syscall.SIGKILL {
		action = "kill"
	}
	n.Env = []string{"GPUSHARE_FAULT=" + point + ":" + action, "GPUSHARE_FAULT_STAMP=" + stamp}
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, offenders+third)
	neighbour, other := begin(t, n, "red", "part", n.Burn("--memory", "10GiB", "--hold")...)
	job, id := begin(t, n, "blue", "part", n.Burn("--memory", "12GiB", "--hold", "--ignore-term")...)
	next := waitFor(t, n, job)
	mount := unified(t)
	dirs := map[string]string{}
	for _, lease := range []string{id, other} {
		dirs[lease] = filepath.Join(mount, findLease(status(t, n), lease).Isolation.Cgroup)
	}
	f := followFreezes(t, dirs)
	terms := followTerms(t, job)
	if err := awaitFault(t, stamp, action, n.DaemonPID()); err != nil {
		t.Fatalf("%v\n%s", err, daemonLog(n))
	}
	// The daemon is at the point: now the victim is stopped or killed.
	pid := n.DaemonPID()
	switch victim {
	case "worker":
		pid = workerOf(t, n.DaemonPID())
	case "gpushare-thaw":
		pid = n.ThawPID()
	}
	at := time.Now()
	if victim != "daemon" {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n.DaemonPID(), syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	} else {
		for time.Since(at) < failOpen+time.Second { // What happens in this time is measured.
			<-time.After(10 * time.Millisecond)
		}
		if last := f.last(); last.After(at.Add(failOpen)) {
			t.Errorf("%v are frozen, or were until %v after the daemon", f.now(), last.Sub(at))
		}
		if sig == syscall.SIGSTOP {
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		} else {
			n.KillDaemon()
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	switch {
	case victim == "worker" && sig == syscall.SIGSTOP:
		// Its call is past its deadline: the GPU is unresponsive until an administrator tries it again.
		err := harness.Await(soon(t), 200*time.Millisecond, "the GPU is not read again", func() (bool, error) {
			select {
			case <-job.Done():
				return true, nil
			default:
			}
			return n.CLI(soon(t), "gpu", "retry", "1").Code == 0, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	case victim == "gpushare-thaw" && sig == syscall.SIGSTOP:
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-job.Done():
	case <-soon(t).Done():
		t.Fatalf("the lease was not stopped\n%s", daemonLog(n))
	}
	got := terms()
	if len(got) == 0 {
		t.Fatalf("it was killed without SIGTERM\n%s", daemonLog(n))
	}
	// The grace of 1 s counts from when SIGTERM was sent. The process says later that it got it: when it is scheduled.
	const scheduled = 250 * time.Millisecond
	if d := time.Since(got[0]); d < time.Second-scheduled {
		t.Errorf("it was killed %v after its first SIGTERM, before the end of its grace", d)
	}
	t.Logf(
		"%d SIGTERM, the first %v before its end; the longest freeze was %v", len(got), time.Since(got[0]).Round(10*time.Millisecond),
		f.longest().Round(10*time.Millisecond),
	)
	select {
	case <-neighbour.Done():
		t.Errorf("the neighbour ended: %s", neighbour.Output())
	default:
	}
	next.fits(t)
	err := harness.Await(soon(t), 10*time.Millisecond, "a lease stays frozen", func() (bool, error) { return len(f.now()) == 0, nil })
	if err != nil {
		t.Error(err)
	}
}

// followTerms returns a function that returns when a job reported each SIGTERM.
func followTerms(t *testing.T, job *harness.Job) func() []time.Time {
	t.Helper()
	var at []time.Time
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			for n := strings.Count(job.Output(), "ignoring SIGTERM"); len(at) < n; {
				at = append(at, time.Now())
			}
			select {
			case <-job.Done():
				return
			case <-t.Context().Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() []time.Time { <-done; return at }
}

// third is a tenant for whom there is memory as soon as the offender has ended: the GPU has 80 GiB.
const third = `  - name: green
    grants:
      - {name: part, timeslice: {share: 10%, gpu_memory: 56GiB}, gpus: {index: 1}}
`

// waiting is a lease that waits for the memory of another one.
type waiting struct {
	n   *harness.Node
	job *harness.Job
}

// waitFor requests a lease for which there is memory after the end of job.
func waitFor(t *testing.T, n *harness.Node, job *harness.Job) *waiting {
	t.Helper()
	// A zombie is no process of a lease any more.
	script := fmt.Sprintf(`grep -q "^State:[[:space:]]*[^ZX]" /proc/%d/status && echo "too early"; echo started; exec %s`,
		job.PID(), strings.Join(n.Burn("--memory", "50GiB", "--hold"), " "))
	next, err := n.Run("-q", "--wait=1m", "-t", "green", "--grant", "part", "--", "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Kill)
	return &waiting{n, next}
}

// fits waits until the lease runs, and checks I7: the memory of the grants with a live lease is at most that of the GPU.
func (w *waiting) fits(t *testing.T) {
	t.Helper()
	if err := w.job.AwaitLine(soon(t), "started"); err != nil {
		t.Fatalf("the next lease does not start: %v\n%s", err, daemonLog(w.n))
	}
	if strings.Contains(w.job.Output(), "too early") {
		t.Errorf("I7: the next lease started while the other one ran\n%s", daemonLog(w.n))
	}
	memoryFits(status(t, w.n), func(id, format string, args ...any) { t.Errorf(id+": "+format, args...) })
}
