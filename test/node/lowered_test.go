package node

import (
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// roomy is a node with two time-sliced GPUs, whose tenant is stopped when it uses too much.
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

// What is renamed or moved away from under a lease is in use; how many leases may come is no matter of those that came.
func TestChangedUnderALease(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, roomy)
	_, id := begin(t, n, "red", "part", "sleep", "60")
	_, other := begin(t, n, "red", "part", "sleep", "60")
	for name, spec := range map[string]string{
		"the tenant is renamed":   strings.Replace(roomy, "name: red", "name: rouge", 1),
		"the grant is renamed":    strings.Replace(roomy, "name: part", "name: piece", 1),
		"the grant is elsewhere":  strings.Replace(roomy, "gpus: {index: 2}", "gpus: {index: 3}", 1),
		"the tenant is not there": roomy[:strings.Index(roomy, "tenants:")],
	} {
		r := n.CLIIn(soon(t), spec, "apply", "-f", "-")
		if r.Code != api.ExitConflict || !strings.Contains(r.Err, id) || !strings.Contains(r.Err, "--force") {
			t.Errorf("%s: apply exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
	}
	for name, spec := range map[string]string{
		"fewer leases":      strings.Replace(roomy, "max_leases: 2", "max_leases: 1", 1),
		"a shorter time":    strings.Replace(roomy, "max_leases: 2", "max_leases: 2, max_time: 1s", 1),
		"another priority":  strings.Replace(roomy, "name: red", "name: red\n    priority: low", 1),
		"more that is free": strings.Replace(roomy, "gpus: {index: 2}", "gpus: {index: [2, 3]}", 1),
	} {
		if r := n.CLIIn(soon(t), spec, "apply", "-f", "-"); r.Code != 0 {
			t.Errorf("%s: apply exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
	}
	if s := awaitChange(t, n); leaseByID(s, id) == nil || leaseByID(s, other) == nil {
		t.Errorf("a lease was ended by a change that is not of its terms: %+v", s.Leases)
	}
}

// GPU memory that is lowered below what is in use takes nobody's life at once: the whole grace begins now.
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
	apply(t, n, strings.Replace(roomy, "memory: 8GiB", "memory: 4GiB", 1)) // Without force.
	s := awaitStatus(t, n, "it is not told that it has too much", func(s *api.Status) bool {
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
