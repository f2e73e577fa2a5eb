package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	gomonitor "github.com/gpushare/gpushare/internal/monitor"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// mostResident is what daemon and worker may have resident together with 8 GPUs, in MiB.
const mostResident = 40

// Daemon and worker stay small with eight GPUs, and become small again after work. Memory is returned once a minute.
func TestResidentMemory(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB, count: 8}]\n")
	var spec strings.Builder
	spec.WriteString("version: v1\nnode: {enforce: on}\ngpus: [{select: {all: true}, mode: timeslice}]\ntenants:\n")
	for i := range 8 {
		fmt.Fprintf(&spec, "  - {name: team%d, grants: [{name: run, timeslice: {share: 10%%, gpu_memory: 1GiB}}]}\n", i)
	}
	apply(t, n, spec.String())
	c := n.Client()
	defer c.Close()
	for i := range 40 { // Each reads the whole node.
		if err := c.Reload(soon(t)); err != nil {
			t.Fatal(err)
		}
		if r := n.CLI(soon(t), "run", "-q", "-t", fmt.Sprintf("team%d", i%8), "--", "true"); r.Code != 0 {
			t.Fatalf("run exited with %d: %s", r.Code, r.Err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	daemon, worker := n.DaemonPID(), workerOf(t, n.DaemonPID())
	var ofDaemon, ofWorker float64
	err := harness.Await(ctx, 100*time.Millisecond, "too much is resident", func() (bool, error) {
		ofDaemon, ofWorker = float64(memoryOf(t, daemon, "VmRSS:"))/(1<<20), float64(memoryOf(t, worker, "VmRSS:"))/(1<<20)
		return ofDaemon+ofWorker <= mostResident, nil
	})
	const text = "the daemon has %.1f MiB resident and the worker %.1f; together they may have %d"
	if err != nil {
		t.Errorf(text, ofDaemon, ofWorker, mostResident)
	}
	t.Logf(text, ofDaemon, ofWorker, mostResident)
}

// The monitor threads of the daemon and of the worker wake up less often than the Go runtime lets them.
func TestMonitorThreadsAreRelaxed(t *testing.T) {
	t.Parallel()
	n := start(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB, count: 1}]\n")
	for name, pid := range map[string]int{"the daemon": n.DaemonPID(), "the worker": workerOf(t, n.DaemonPID())} {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			t.Fatal(err)
		}
		relaxed := 0
		for _, e := range list {
			b, err := os.ReadFile("/proc/" + e.Name() + "/timerslack_ns")
			if errors.Is(err, fs.ErrPermission) {
				t.Skip("to read the slack of a thread needs root")
			}
			if err == nil && strings.TrimSpace(string(b)) == strconv.FormatInt(gomonitor.Slack.Nanoseconds(), 10) {
				relaxed++
			}
		}
		if relaxed == 0 {
			t.Errorf("no thread of %s has a slack of %s", name, gomonitor.Slack)
		}
	}
}
