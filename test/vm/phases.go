package vm

import (
	"os"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/test/enumeration"
)

// boot is one boot of a machine: the phases that it runs in order before the power-off. A new host has a disk without the writes of
// other boots, so it boots next to them.
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
			},
			false,
		},
		{"documents", []string{"documents"}, true},
		{"ansible", []string{"ansible"}, true},
	}
}

// halves are phases that no other phase builds upon. A sample runs one of the two lists on one of the two systems; with the next number the
// other system has its turn, and with the one after that the other list.
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
		"documents",
	},
	{
		"metrics",
		"attack",
		"second-attack",
		"escape",
		"rootless",
		"neighbours",
		"quiesce",
		"ansible",
	},
}

// half returns the list of a phase; -1: no sample of its system leaves it.
func half(phase string) int {
	return slices.IndexFunc(halves[:], func(list []string) bool { return slices.Contains(list, phase) })
}

// chosen returns the boots of a system, which is counted from 0, with the phases that they run, and the phases that another sample runs.
// VM_PHASES names phases (separated by spaces), to run a single one: it must also name the phases that it builds upon.
func chosen(all []boot, system int) (some []boot, others []string) {
	only := strings.Fields(os.Getenv("VM_PHASES"))
	for _, b := range all {
		left := func(p string) bool {
			if len(only) > 0 {
				return !slices.Contains(only, p)
			}
			return enumeration.Sampled() && !thisSample(half(p), system)
		}
		for _, p := range b.phases {
			if len(only) == 0 && left(p) {
				others = append(others, p)
			}
		}
		b.phases = slices.DeleteFunc(b.phases, left)
		if len(b.phases) > 0 {
			some = append(some, b)
		}
	}
	return some, others
}

// thisSample reports whether a sample runs the phases of a list, or of none (-1), on a system.
func thisSample(list, system int) bool {
	if list < 0 {
		return enumeration.Runs(system, len(halves))
	}
	return enumeration.Runs(system+2*list, 2*len(halves))
}
