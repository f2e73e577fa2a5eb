package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/test/harness"
)

// failOpenRepeats is how often the daemon is stopped, at different times of a round.
const failOpenRepeats = 7

// failOpen measures the time after which no process is frozen any more: after the daemon was stopped (SIGSTOP), as by a
// debugger or a full disk, and after it was killed.
func (b *bench) failOpen(ctx context.Context) ([]Figure, error) {
	if !b.freezes() {
		return b.skip("fail open", "root and cgroup v2, to freeze processes")
	}
	list := []scenario{
		{name: "fail open, long queues", loads: []load{{share: 10, burn: queue400}, {share: 90, burn: queue20}}},
		{name: "fail open, eight", loads: equal(8, queue50)},
	}
	stopped, killed, err := b.thawTimes(ctx, list)
	if err != nil {
		return nil, err
	}
	target := 2.0
	return []Figure{
		figure("last lease thawed after SIGSTOP of the daemon", stopped, "s", "lower", &target),
		figure("last lease thawed after SIGKILL of the daemon", killed, "s", "lower", &target),
	}, nil
}

// thawTimes runs scenarios and stops and kills their daemon in turn.
func (b *bench) thawTimes(ctx context.Context, list []scenario) (stopped, killed []float64, err error) {
	n, err := b.startNode(ctx, samplers[0])
	if n != nil {
		defer func() { err = errors.Join(err, n.Close()) }()
	}
	if err != nil {
		return nil, nil, err
	}
	all, err := startScenarios(ctx, n, list)
	defer stopAll(all)
	if err != nil {
		return nil, nil, err
	}
	var files []string
	for _, r := range all {
		for _, j := range r.jobs {
			f, err := eventsFile(j.PID())
			if err != nil {
				return nil, nil, err
			}
			files = append(files, f)
		}
	}
	for i := range failOpenRepeats {
		// Not a multiple of a round, so that the daemon is stopped at another point of it each time.
		if err := pause(ctx, 5*time.Second+time.Duration(i)*370*time.Millisecond); err != nil {
			return nil, nil, err
		}
		d, err := thawTime(ctx, files, func() error { return syscall.Kill(n.DaemonPID(), syscall.SIGSTOP) })
		if e := syscall.Kill(n.DaemonPID(), syscall.SIGCONT); err == nil {
			err = e
		}
		if err != nil {
			return nil, nil, fmt.Errorf("daemon stopped: %w", err)
		}
		stopped = append(stopped, d.Seconds())
		if err := pause(ctx, 3*time.Second); err != nil {
			return nil, nil, err
		}
		d, err = thawTime(ctx, files, func() error { n.KillDaemon(); return nil })
		if err != nil {
			return nil, nil, fmt.Errorf("daemon killed: %w", err)
		}
		killed = append(killed, d.Seconds())
		if err := n.StartDaemon(ctx); err != nil {
			return nil, nil, err
		}
	}
	return stopped, killed, stillRun(all)
}

// thawTime is the time from an event that ends the daemon's work until no cgroup is frozen. It waits for a moment at which one is
// frozen before that.
func thawTime(ctx context.Context, files []string, event func() error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := harness.Await(ctx, time.Millisecond, "no lease is frozen", func() (bool, error) { return anyFrozen(files) }); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := event(); err != nil {
		return 0, err
	}
	err := harness.Await(ctx, time.Millisecond, "a lease is still frozen", func() (bool, error) {
		frozen, err := anyFrozen(files)
		return !frozen, err
	})
	return time.Since(began), err
}

// eventsFile is the file in which the kernel reports whether the cgroup of a process is frozen.
func eventsFile(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", fmt.Errorf("cannot read the cgroup of process %d: %w", pid, err)
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join(h.Dir(path), "cgroup.events"), nil
		}
	}
	return "", fmt.Errorf("process %d is in no cgroup v2", pid)
}

func anyFrozen(files []string) (bool, error) {
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return false, fmt.Errorf("cannot read whether a lease is frozen: %w", err)
		}
		if bytes.Contains(b, []byte("frozen 1")) {
			return true, nil
		}
	}
	return false, nil
}

// freezes reports whether processes can be frozen here. It is the daemon's condition for time shares.
func (b *bench) freezes() bool {
	h, err := cgroup.FindHierarchy()
	return err == nil && os.Geteuid() == 0 && h.Writable()
}
