package node

import (
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// roomy is a spec with two time-sliced GPUs and overuse kill.
const roomy = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [2, 3]}, mode: timeslice}
tenants:
  - name: red
    overuse: {gpu_memory: kill, grace: 2s}
    grants:
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}, gpus: {index: 2}, max_leases: 2}
`

// A tenant or grant with a lease cannot be renamed, moved or removed without --force. New limits for later leases do not affect
// running leases.
func TestChangedUnderALease(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, roomy)
	_, id := begin(t, n, "red", "part", "sleep", "60")
	_, other := begin(t, n, "red", "part", "sleep", "60")
	for name, spec := range map[string]string{
		"the tenant is renamed":       replaced(t, roomy, "name: red", "name: rouge"),
		"the grant is renamed":        replaced(t, roomy, "name: part", "name: piece"),
		"the grant is on another GPU": replaced(t, roomy, "gpus: {index: 2}", "gpus: {index: 3}"),
		"the tenant is removed":       roomy[:strings.Index(roomy, "tenants:")],
	} {
		r := n.CLIIn(soon(t), spec, "apply", "-f", "-")
		if r.Code != api.ExitConflict || !strings.Contains(r.Err, id) || !strings.Contains(r.Err, "--force") {
			t.Errorf("%s: apply exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
	}
	for name, spec := range map[string]string{
		"fewer leases":     replaced(t, roomy, "max_leases: 2", "max_leases: 1"),
		"a shorter time":   replaced(t, roomy, "max_leases: 2", "max_leases: 2, max_time: 1s"),
		"another priority": replaced(t, roomy, "name: red", "name: red\n    priority: low"),
		"more capacity":    replaced(t, roomy, "gpus: {index: 2}", "gpus: {index: [2, 3]}"),
	} {
		if r := n.CLIIn(soon(t), spec, "apply", "-f", "-"); r.Code != 0 {
			t.Errorf("%s: apply exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
	}
	if s := awaitChange(t, n); leaseByID(s, id) == nil || leaseByID(s, other) == nil {
		t.Errorf("a change outside its terms ended a lease: %+v", s.Leases)
	}
}

// A GPU memory limit that is lowered below use stops no lease at once: the full grace begins with the change.
func TestGPUMemoryBelowUse(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, roomy)
	job, id := begin(t, n, "red", "part", n.Burn("--memory", "6GiB", "--hold")...)
	awaitStatus(t, n, "its memory is not seen", func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Used > 5<<30
	})
	began := time.Now()
	apply(t, n, replaced(t, roomy, "memory: 8GiB", "memory: 4GiB")) // Without force.
	s := awaitStatus(t, n, "the overuse is not reported", func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Limit == 4<<30 && l.GPUMemory.Stage == "over" && len(l.Notices) > 0
	})
	if l := leaseByID(s, id); !strings.Contains(strings.Join(l.Notices, " "), "4") {
		t.Errorf("its notices are %q", l.Notices)
	}
	awaitEnd(t, job)
	if elapsed := time.Since(began); elapsed < 2*time.Second {
		t.Errorf("it was ended after %s, its grace is 2s", elapsed)
	}
	err := harness.Await(soon(t), 10*time.Millisecond, "the lease stays", func() (bool, error) {
		return leaseByID(status(t, n), id) == nil, nil
	})
	if err != nil {
		t.Error(err)
	}
}
