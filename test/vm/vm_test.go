//go:build vm

package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

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
	// In a sample the two systems share the phases that no other one builds upon.
	today, other := chosen(boots(), map[string]int{debian12.name: 0, debian13.name: 1}[sys.name])
	if len(other) > 0 {
		t.Logf("%s: of the phases these run on the other system only: %s", sys.name, strings.Join(other, " "))
	}
	for _, b := range today {
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
