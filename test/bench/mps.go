package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
)

// mpsTime is the measured time: the observations and readings of one minute.
const mpsTime = time.Minute

// mps measures what eight control daemons of MPS cost on an idle node: their own CPU time, and what the daemon needs more with them than
// without, with the control programs that it runs.
func (b *bench) mps(ctx context.Context) ([]Figure, error) {
	without, _, err := b.idleWith(ctx, api.ModeExclusive)
	if err != nil {
		return nil, err
	}
	with, own, err := b.idleWith(ctx, api.ModeMPS)
	if err != nil {
		return nil, err
	}
	const of = "8 MPS control daemons without clients"
	return []Figure{
		lower(fmt.Sprintf("%s: CPU of them and of what watches them over %s", of, mpsTime), own+with-without, "% of a core", 0.2),
		figure(of+": of that, their own", []float64{own}, "% of a core", "lower", nil),
		figure(of+": the daemon and its workers with them", []float64{with}, "% of a core", "lower", nil),
		figure("8 GPUs without MPS: the daemon and its workers", []float64{without}, "% of a core", "lower", nil),
	}, nil
}

// idleWith is the CPU time of the daemon, its workers and the programs that they have run, and that of the control daemons, in percent of
// a core, with all GPUs in one mode.
func (b *bench) idleWith(ctx context.Context, mode string) (daemon, control float64, failed error) {
	n, err := b.startNode(ctx, samplers[0])
	if n != nil {
		defer func() { failed = errors.Join(failed, n.Close()) }()
	}
	if err != nil {
		return 0, 0, err
	}
	spec := "version: v1\nnode: {enforce: on}\ngpus: [{select: {all: true}, mode: " + mode + "}]\n"
	if r := n.CLIIn(ctx, spec, "apply", "-f", "-"); r.Code != 0 {
		return 0, 0, fmt.Errorf("cannot apply the spec: %s", r.Err)
	}
	if err := pause(ctx, b.warmUp); err != nil {
		return 0, 0, err
	}
	st, err := n.Client().Status(ctx)
	if err != nil {
		return 0, 0, err
	}
	var controls []int
	for i := range st.GPUs {
		if m := st.GPUs[i].MPS; m != nil && m.PID != 0 {
			controls = append(controls, m.PID)
		}
	}
	if mode == api.ModeMPS && len(controls) != virtualGPUs {
		return 0, 0, fmt.Errorf("%d of %d control daemons run", len(controls), virtualGPUs)
	}
	programs, err := programsOf(n)
	if err != nil {
		return 0, 0, err
	}
	var daemons []int
	for _, p := range programs {
		if p.name == daemonName || p.name == workerName {
			daemons = append(daemons, p.pid)
		}
	}
	measure := func() (daemon, control time.Duration, err error) {
		daemon, err = cpuTimes(daemons)
		if err == nil {
			control, err = cpuTimes(controls)
		}
		return daemon, control, err
	}
	began := time.Now()
	daemonBefore, controlBefore, err := measure()
	if err != nil {
		return 0, 0, err
	}
	if err := pause(ctx, mpsTime); err != nil {
		return 0, 0, err
	}
	daemonAfter, controlAfter, err := measure()
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / time.Since(began).Seconds() }
	return percent(daemonAfter - daemonBefore), percent(controlAfter - controlBefore), err
}

// cpuTimes is the CPU time of some processes and of their children that have ended.
func cpuTimes(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		own, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, fmt.Errorf("cannot read the CPU time of process %d: %w", pid, err)
		}
		// Fields count from 1: 16 is the user time of its children, 17 their kernel time.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) < 15 {
			return 0, fmt.Errorf("the state of process %d is too short", pid)
		}
		var user, kernel int64
		if _, err := fmt.Sscan(fields[13]+" "+fields[14], &user, &kernel); err != nil {
			return 0, fmt.Errorf("cannot read the CPU time of process %d: %w", pid, err)
		}
		sum += own + time.Duration(user+kernel)*10*time.Millisecond
	}
	return sum, nil
}
