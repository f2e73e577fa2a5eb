//go:build vm

package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/machine"
)

// The images are built before the machines boot, both at the same time.
func TestImages(t *testing.T) {
	machine.Need(t)
	for _, sys := range []machine.System{machine.Debian12, machine.Debian13} {
		t.Run(sys.Name, func(t *testing.T) {
			t.Parallel()
			machine.Base(t, sys)
		})
	}
}

// The same boots on each system, new hosts next to those that follow one another. A machine has one CPU.

func TestDebian12(t *testing.T)    { runBoots(t, machine.Debian12, false) }
func TestDebian13(t *testing.T)    { runBoots(t, machine.Debian13, false) }
func TestNewDebian12(t *testing.T) { runBoots(t, machine.Debian12, true) }
func TestNewDebian13(t *testing.T) { runBoots(t, machine.Debian13, true) }

func runBoots(t *testing.T, sys machine.System, newHosts bool) {
	t.Parallel()
	machine.Need(t)
	today, others := chosen(boots(), map[string]int{machine.Debian12.Name: 0, machine.Debian13.Name: 1}[sys.Name])
	if !newHosts && len(others) > 0 {
		t.Logf("%s: of the phases other samples run: %s", sys.Name, strings.Join(others, " "))
	}
	today = slices.DeleteFunc(today, func(b boot) bool { return b.new != newHosts })
	if len(today) == 0 {
		return
	}
	img := machine.Base(t, sys)
	m := guest{sys: sys, img: img, disk: machine.NewDisk(t, img), payload: machine.Payload(
		t,
		machine.Part{Target: "guest", Source: "guest"},
		machine.Part{Target: "packages", Source: machine.Packages(t)},
		machine.Part{Target: "gpusim", Source: machine.Simulator(t)},
		machine.Part{Target: "tests", Source: tests(t)},
		machine.Part{Target: "packaging", Source: "../../packaging"},
		machine.Part{Target: "ansible", Source: "../../ansible"},
		machine.Part{Target: "walk", Source: walker(t)},
		machine.Part{Target: "attacker", Source: attacker(t)},
		machine.Part{Target: "docs", Source: "../../docs"},
		machine.Part{Target: "nodes", Source: "../../testdata/nodes"},
	)}
	ran := map[State]int{}
	var failed []string
	var elapsed time.Duration
	for _, b := range today {
		t.Run(b.name, func(t *testing.T) {
			if b.new {
				m.disk = machine.NewDisk(t, img)
			}
			began := time.Now()
			rep, off := m.boot(t, b.name, b.phases)
			elapsed += time.Since(began)
			for _, o := range rep.Outcomes {
				ran[o.State]++
				if o.State == Failed {
					failed = append(failed, fmt.Sprintf("\n%s boot, %s: %s", b.name, o.Name, o.Why))
				}
			}
			publish(t, rep)
			// Seen with a frozen lease: 4 to 7 s on an idle machine. The default stop timeout of a scope would make it 90 s.
			t.Logf("off %.1f s after the last check", off.Seconds())
			if rep.Done && off > time.Minute {
				console, err := os.ReadFile(filepath.Join(machine.Builds, "logs", sys.Name+"-"+b.name+".console"))
				t.Errorf("the power went off %s after the last check; the end of its console: %v\n%s", off, err, tail(console, 80))
			}
		})
	}
	// The reasons are among the last lines as well: the first failure of a phase is most often that of those after it.
	t.Logf("%s: %d checks passed, %d failed, %d unfinished, %d skipped, in %s%s", sys.Name,
		ran[Passed], ran[Failed], ran[Unfinished], ran[Skipped], elapsed.Round(time.Second), strings.Join(failed, ""))
}
