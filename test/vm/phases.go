package vm

import (
	"os"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/test/enumeration"
)

// boot is one boot of a machine: the phases that it runs in order before the power-off. A new host has a disk without the writes of
// the boots before it; what a new host shows is the same on each system, so it is booted once, with the newest.
type boot struct {
	name   string
	phases []string
	new    bool
}

// boots are the boots of every system. A phase depends on the phases before it on its disk.
func boots() []boot {
	return []boot{
		{
			"first",
			[]string{
				"logins",
				"mechanisms",
				"adapter",
				"install",
				"product",
				"steady",
				"metrics",
				"mps-socket",
				"attack",
				"traced",
				"second-attack",
				"attach",
				"detach",
				"lost-record",
				"escape",
				"login-filter",
				"other-ways",
				"rootless",
				"neighbours",
				"slurm",
				"keep",
			},
			false,
		},
		{
			"second",
			[]string{
				"after-mechanisms",
				"after-adapter",
				"after-product",
				"after-login-filter",
				"limits",
				"quiesce",
				"unmanage",
				"removal",
				"ansible",
			},
			false,
		},
		{"new", []string{"documents"}, true},
	}
}

// halves are phases that no other phase builds upon. In a sample those of one list run on one of the two systems, and on the other one with
// the next number. The phase documents takes about as long as ansible and slurm, so the newer system has it when the other one has those.
var halves = [2][]string{
	{
		"steady",
		"mps-socket",
		"traced",
		"attach",
		"lost-record",
		"other-ways",
		"slurm",
		"limits",
		"ansible",
	},
	{
		"metrics",
		"attack",
		"second-attack",
		"escape",
		"rootless",
		"neighbours",
		"quiesce",
		"documents",
	},
}

// half returns the list of a phase; -1: it runs on each system.
func half(phase string) int {
	return slices.IndexFunc(halves[:], func(list []string) bool { return slices.Contains(list, phase) })
}

// chosen returns the phases that a system runs, which is counted from 0, and those of the other system. VM_PHASES names phases
// (separated by spaces), to run a single one: it must also name the phases that it builds upon. Without it all run, or a sample.
func chosen(all []boot, system int) (some []boot, other []string) {
	only := strings.Fields(os.Getenv("VM_PHASES"))
	if len(only) == 0 {
		for _, b := range all {
			for _, p := range b.phases {
				i := half(p)
				if i < 0 || !enumeration.Sampled() || enumeration.Runs(i+system, 2) {
					only = append(only, p)
				} else {
					other = append(other, p)
				}
			}
		}
	}
	for _, b := range all {
		b.phases = slices.DeleteFunc(b.phases, func(p string) bool { return !slices.Contains(only, p) })
		if len(b.phases) > 0 {
			some = append(some, b)
		}
	}
	return some, other
}
