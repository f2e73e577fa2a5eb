package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/loop"
)

// movePause is the time between two moves, and between two runs that are compared with them: longer than a grace period.
const movePause = 100 * time.Millisecond

// moves measures how many ms the kernel needs to move a process into another cgroup after a pause, which each start of a lease does once.
// On a hierarchy without the mount option favordynmods the first move after a pause waits for a grace period of RCU, so that forks and
// exits of all programs need no lock meanwhile (cgroup-v2.rst, "Mounting"; rcu_sync_enter in /proc/PID/stack). nil: this process may not
// make cgroups.
func moves(ctx context.Context, times int) (ms []float64, failed error) {
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return nil, nil
	}
	base := filepath.Join(h.Mount, "gpushare-bench-"+strconv.Itoa(os.Getpid()))
	one, other := filepath.Join(base, "one"), filepath.Join(base, "other")
	for _, dir := range []string{base, one, other} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, nil
		}
		defer func() { failed = errors.Join(failed, os.Remove(dir)) }()
	}
	moved := exec.CommandContext(ctx, "sleep", "infinity")
	if err := moved.Start(); err != nil {
		return nil, fmt.Errorf("cannot start a process that is moved: %w", err)
	}
	defer func() {
		_ = moved.Process.Kill()
		_ = moved.Wait() // It was killed.
	}()
	pid := []byte(strconv.Itoa(moved.Process.Pid))
	for i := range times {
		to := one
		if i%2 > 0 {
			to = other
		}
		if !loop.Pause(ctx, movePause) {
			return nil, ctx.Err()
		}
		began := time.Now()
		if err := os.WriteFile(filepath.Join(to, "cgroup.procs"), pid, 0o600); err != nil {
			return nil, fmt.Errorf("cannot move a process: %w", err)
		}
		ms = append(ms, float64(time.Since(began).Microseconds())/1000)
	}
	return ms, nil
}
