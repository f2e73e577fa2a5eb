//go:build vm

package vm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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

// The images are built before the machines boot, both at the same time.
func TestImages(t *testing.T) {
	need(t)
	for _, sys := range []system{debian12, debian13} {
		t.Run(sys.name, func(t *testing.T) {
			t.Parallel()
			baseImage(t, sys)
		})
	}
}

// The same boots on each system. A machine has one CPU, so both run in parallel.

func TestDebian12(t *testing.T) { runBoots(t, debian12) }
func TestDebian13(t *testing.T) { runBoots(t, debian13) }

func runBoots(t *testing.T, sys system) {
	t.Parallel()
	need(t)
	img := baseImage(t, sys)
	m := machine{sys: sys, img: img, disk: newDisk(t, img), payload: payload(t, map[string]string{
		"guest":     "guest",
		"packages":  packages(t),
		"gpusim":    simulator(t),
		"tests":     tests(t),
		"packaging": "../../packaging",
		"ansible":   "../../ansible",
		"walk":      walker(t),
		"attacker":  attacker(t),
		"docs":      "../../docs",
		"nodes":     "../../testdata/nodes",
	})}
	ran := map[State]int{}
	var elapsed time.Duration
	for _, b := range chosen(boots()) {
		if b.new && sys.name != debian13.name {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			if b.new {
				m.disk = newDisk(t, img)
			}
			began := time.Now()
			rep, off := m.boot(t, b.name, b.phases)
			elapsed += time.Since(began)
			for _, o := range rep.Outcomes {
				ran[o.State]++
			}
			publish(t, rep)
			// Seen with a frozen lease: 4 to 7 s on an idle machine. The default stop timeout of a scope would make it 90 s.
			t.Logf("off %.1f s after the last check", off.Seconds())
			if rep.Done && off > time.Minute {
				console, err := os.ReadFile(filepath.Join(builds, "logs", sys.name+"-"+b.name+".console"))
				t.Errorf("the power went off %s after the last check; the end of its console: %v\n%s", off, err, tail(console, 80))
			}
		})
	}
	t.Logf("%s: %d checks passed, %d failed, %d unfinished, %d skipped, in %s", sys.name,
		ran[Passed], ran[Failed], ran[Unfinished], ran[Skipped], elapsed.Round(time.Second))
}

// chosen returns the phases that VM_PHASES names (separated by spaces), to run a single phase: it must also name the phases
// that it builds upon. Empty means all.
func chosen(all []boot) []boot {
	only := strings.Fields(os.Getenv("VM_PHASES"))
	if len(only) == 0 {
		return all
	}
	var some []boot
	for _, b := range all {
		b.phases = slices.DeleteFunc(b.phases, func(p string) bool { return !slices.Contains(only, p) })
		if len(b.phases) > 0 {
			some = append(some, b)
		}
	}
	return some
}
