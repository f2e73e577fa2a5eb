package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

// Memory in no process is a condition that names the only lease on the GPU, and a new lease gets only what is free.
func TestMemoryInNoProcess(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := newNode(t, quick)
	n.Settings = map[string]string{"converge_interval": "1s"}
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, shared)
	find := func(s *api.Status) *api.Condition {
		for i := range s.Node.Conditions {
			if s.Node.Conditions[i].Kind == "memory-in-no-process" {
				return &s.Node.Conditions[i]
			}
		}
		return nil
	}
	// Of a lease: its managed memory is within what it was granted.
	_, id := begin(t, n, "red", "part", n.Burn("--gpu", "0", "--memory", "1GiB", "--managed", "4GiB", "--seconds", "600")...)
	var c *api.Condition
	awaitStatus(t, n, "the lease with managed memory is not named", func(s *api.Status) bool {
		c = find(s)
		return c != nil && strings.Contains(c.Message, id+" is the only lease on it") && c.Tenant == "red"
	})
	if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("a lease next to it: %d %s", r.Code, r.Err)
	}
	if c == nil {
		return
	}
	followHint(t, n, c.Hint)
	awaitStatus(t, n, "the condition stays without the lease", func(s *api.Status) bool { return find(s) == nil && len(s.Leases) == 0 })

	// Of no lease: 34 of 40 GiB are used, and grants of 8 GiB do not fit.
	for _, g := range []string{"2", "3"} {
		if err := n.Ctl(soon(t), nil, "sensor", g, "unfreed-memory", "34816"); err != nil {
			t.Fatal(err)
		}
	}
	s := awaitStatus(t, n, "the memory of no lease is not reported", func(s *api.Status) bool {
		return len(slices.DeleteFunc(slices.Clone(s.Node.Conditions), func(c api.Condition) bool {
			return c.Kind != "memory-in-no-process" || !strings.Contains(c.Message, "no lease has the GPU")
		})) == 2
	})
	if c = find(s); !strings.Contains(c.Hint, "nvidia-smi --gpu-reset -i ") {
		t.Errorf("the hint is %q", c.Hint)
	}
	for _, grant := range []string{"part", "whole"} {
		if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", grant, "--", "true"); r.Code == 0 ||
			!strings.Contains(r.Err, "in no process") {
			t.Errorf("a lease of %s without free memory: %d %s", grant, r.Code, r.Err)
		}
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("a lease for which enough is free: %d %s", r.Code, r.Err)
	}
	for c != nil { // A reset frees the memory of each.
		awaitStatus(t, n, "leases are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
		followHint(t, n, c.Hint)
		was := c.GPU
		awaitStatus(t, n, "the condition stays after a reset", func(s *api.Status) bool {
			c = find(s)
			return c == nil || c.GPU != was
		})
	}
}
