package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// killSpec is bypassSpec with a limit of GPU memory above which leases are stopped, and processes without MPS only reported.
func killSpec(t *testing.T) string {
	spec := replaced(t, bypassSpec, "bypass: stop", "bypass: report")
	spec = replaced(t, spec, "share: 30%", "share: 30%, gpu_memory: 1GiB")
	return replaced(t, spec, "  - name: red\n", "  - name: red\n    overuse: {gpu_memory: kill, grace: 1s}\n")
}

// The limit of GPU memory of a grant of MPS is watched whatever its processes ask of MPS: several clients that are each below it, and
// a process that does not join. Nothing is called enforced that a process can refuse.
func TestMemoryOfMPSIsWatched(t *testing.T) {
	enumeration.Long(t)
	for _, lists := range []string{"own", "both"} {
		for way, script := range map[string]string{
			"two clients":             "%[1]s & exec %[1]s",
			"clients without a limit": "unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; %[1]s & exec %[1]s",
			"without MPS":             "unset CUDA_MPS_PIPE_DIRECTORY; %[1]s & exec %[1]s",
		} {
			t.Run(lists+", "+way, func(t *testing.T) {
				t.Parallel()
				n := start(t, fmt.Sprintf(bypassNode, lists))
				apply(t, n, killSpec(t))
				events := follow(t, n)
				job, id := shell(t, n, fmt.Sprintf(script, strings.Join(n.Burn("--memory", "700MiB", "--hold"), " ")))
				events.await(t, "memory.stop", id)
				select {
				case <-job.Done():
				case <-soon(t).Done():
					t.Fatalf("lease %s was not stopped: %+v\n%s", id, status(t, n).Leases, daemonLog(n))
				}
			})
		}
	}
}

// A driver that lists only the server of MPS does not say what a lease uses: it is unknown, not nothing, and its limit is not
// enforced.
func TestMemoryOfMPSIsUnknown(t *testing.T) {
	t.Parallel()
	n := start(t, fmt.Sprintf(bypassNode, "server"))
	apply(t, n, killSpec(t))
	_, id := shell(t, n, "exec "+strings.Join(n.Burn("--memory", "700MiB", "--hold"), " "))
	var l *api.Lease
	if err := harness.Await(soon(t), 200*time.Millisecond, "its memory is not unknown", func() (bool, error) {
		l = harness.Lease(status(t, n), "red", "join")
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Unknown, nil
	}); err != nil {
		t.Fatalf("%v: %+v", err, l.GPUMemory)
	}
	r := n.CLI(soon(t), "explain", id)
	for line := range strings.Lines(r.Out) {
		if strings.HasPrefix(line, "GPU memory ") && !strings.HasPrefix(line, "GPU memory per client") && strings.Contains(line, " yes ") {
			t.Errorf("explain: %s", line)
		}
	}
	if !strings.Contains(r.Out, "the driver does not list its clients of MPS") {
		t.Errorf("explain printed\n%s%s", r.Out, r.Err)
	}
}
