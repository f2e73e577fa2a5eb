package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/harness"
)

// The number of processes of the figure: 10 000 would need gigabytes, and the time is proportional.
const (
	attributedLeases = 100
	processesOfEach  = 20
)

// attribution measures the attribution of processes to leases, in cgroups of its own. It needs root and cgroup v2.
func attribution(ctx context.Context, _ *harness.Node) (figures []Figure, err error) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "bench: skipped, needs root: PID to tenant")
		return nil, nil
	}
	tree, err := cgroup.NewTree(cgroup.TreeOptions{Subtree: fmt.Sprint("gpushare-bench-", os.Getpid())})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: skipped, needs cgroup v2: PID to tenant:", err)
		return nil, nil
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		if e := tree.Destroy(end); err == nil {
			err = e
		}
	}()
	for i := range attributedLeases {
		leave, err := crowd(ctx, tree, "bench-"+strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	var durations []float64
	for range 21 {
		began := time.Now()
		n := len(tree.PIDIndex())
		durations = append(durations, float64(time.Since(began).Microseconds())/1000)
		if n != attributedLeases*processesOfEach {
			return nil, fmt.Errorf("%d processes were attributed, there are %d", n, attributedLeases*processesOfEach)
		}
	}
	return []Figure{
		lower("PID to tenant, per 10 000 processes, median of 21", median(durations)*10_000/(attributedLeases*processesOfEach), "ms", 20),
	}, nil
}

// crowd starts a scope with processes, which end when leave is called.
func crowd(ctx context.Context, tree *cgroup.Tree, id string) (leave func(), err error) {
	script := fmt.Sprintf("read x; i=1; while [ $i -lt %d ]; do (read y <&3) & i=$((i+1)); done; echo up; read y <&3", processesOfEach)
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot create a pipe: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot create a pipe: %w", err)
	}
	r, w, err := os.Pipe() // They wait for data from its other end.
	if err != nil {
		return nil, fmt.Errorf("cannot create a pipe: %w", err)
	}
	defer r.Close()
	cmd.ExtraFiles = []*os.File{r}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start processes: %w", err)
	}
	leave = func() {
		w.Close()
		_ = cmd.Wait() // They exit, or are killed with the tree.
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	_, err = tree.StartScope(ctx, cgroup.Scope{
		ID: id, Slice: cgroup.SliceName{Tenant: "bench", Grant: "part"}, Process: cgroup.Process{PID: cmd.Process.Pid, Start: start},
	})
	if err != nil {
		return nil, err
	}
	in.Close() // They start in the cgroup.
	if _, err := out.Read(make([]byte, 8)); err != nil {
		return nil, fmt.Errorf("the processes were not started: %w", err)
	}
	return leave, nil
}
