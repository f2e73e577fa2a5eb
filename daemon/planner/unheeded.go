package planner

import (
	"github.com/gpushare/gpushare/api"
)

// Unheeded names what a spec asks for and this version reads without doing it. Silence would be taken for a promise: who
// writes that logins are guarded believes that they are.
func Unheeded(s *api.Spec) []string {
	var out []string
	seen := map[string]bool{}
	add := func(is bool, key, what string) {
		if is && !seen[key] {
			seen[key] = true
			out = append(out, key+" is not carried out by this version: "+what)
		}
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		add(g.MPS != nil && g.MPS.Namespaces != "", "mps.namespaces", "MPS runs with one server for all")
		add(g.MPS != nil && g.MPS.Bypass == "stop", "mps.bypass: stop", "contexts outside MPS are only reported")
		add(g.MPS != nil && g.MPS.Unverified == "refuse", "mps.unverified: refuse", "it is read as degrade")
	}
	for i := range s.Tenants {
		t := &s.Tenants[i]
		add(t.Preempt != "", "preempt", "nobody is stopped for somebody else")
		for j := range t.GPU {
			g := &t.GPU[j]
			add(g.Accept != "", "accept", "a lease gets what it was granted or waits")
			add(g.Idle != nil, "idle", "leases that do nothing are not noticed")
			add(g.MPS != nil && g.Kind() == api.ModeMIG, "mps inside a MIG grant", "the lease gets its instance without MPS")
		}
	}
	return out
}
