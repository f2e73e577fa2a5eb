package engine

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// scope is how long a step's effect, and with it its undo data, is valid.
type scope int

const (
	permanent scope = iota // always: slice files, Ampere's MIG mode
	perBoot                // until the next boot: processes
	perDriver              // until the next boot, driver load or reset of the GPU
)

// scopes lists the kinds of steps that are not permanent; a kind that ends in a dot is a prefix.
var scopes = []struct {
	kind  string
	scope scope
}{
	{"mig.create", perDriver},
	{"mig.destroy", perDriver},
	{"mig.compute", perDriver},
	{"gpu.compute-mode", perDriver},
	{"gpu.power-limit", perDriver},
	{"mps.", perBoot},
	{"unit.", perBoot},
	{"process.", perBoot},
}

func scopeOf(kind string) scope {
	for _, s := range scopes {
		if kind == s.kind || strings.HasSuffix(s.kind, ".") && strings.HasPrefix(kind, s.kind) {
			return s.scope
		}
	}
	return permanent
}

// remaining returns a record's steps that are still valid and, by GPU, the number of those that are not: an instance that
// ended with the boot can be neither destroyed nor created again by undo.
func remaining(r *Record, now store.Epoch) (left []step.Step, dropped map[string]int) {
	dropped = map[string]int{}
	boot := r.Epoch.Boot != now.Boot
	driver := boot || r.Epoch.Driver != now.Driver
	for _, s := range r.Steps {
		void := false
		switch scopeOf(s.Kind) {
		case perBoot:
			void = boot
		case perDriver:
			void = driver || r.Epoch.Resets[gpu.UUID(s.GPU)] != now.Resets[gpu.UUID(s.GPU)]
		}
		if void {
			dropped[s.GPU]++
			continue
		}
		left = append(left, s)
	}
	return left, dropped
}

// byGPU returns each GPU's steps in the order revoke, change, grant.
func byGPU(steps []step.Step) map[string][]step.Step {
	by := map[string][]step.Step{}
	for _, s := range steps {
		by[s.GPU] = append(by[s.GPU], s)
	}
	for g := range maps.Keys(by) {
		slices.SortStableFunc(by[g], func(a, b step.Step) int { return phases[a.Phase] - phases[b.Phase] })
	}
	return by
}

var phases = map[step.Phase]int{step.RevokeAccess: 0, step.Change: 1, step.GrantAccess: 2}
