package fairness

import (
	"testing"
	"time"
)

// TestSamplesAreReadByTheRule checks that the samples are read here as often as the daemon reads them: by the rule that it asks too.
// Figures of more readings would promise what the daemon does not do.
func TestSamplesAreReadByTheRule(t *testing.T) {
	alone := Scenario{Loads: []Load{training(30)}}
	busy := Scenario{Loads: []Load{training(30), training(70)}}
	light := Scenario{Loads: []Load{inference(20), training(80)}}
	capped := Scenario{Loads: []Load{{Share: 30, Program: flood, Cap: 0.5}}}
	for _, c := range []struct {
		name     string
		scenario Scenario
		variant  int
		every    time.Duration
		series   bool
	}{
		{"leases that keep the GPU busy", busy, 1, 2 * time.Second, true},
		{"eight of them", Scenario{Loads: queues(0, equal(8), 50*ms)}, 1, 2 * time.Second, true},
		{"a lease next to the slices", light, 1, time.Second, true},
		{"no series", busy, 6, time.Second, false},
		{"one sample a second", busy, 11, time.Second, true},
		{"a lease that is alone", alone, 1, 5 * time.Second, false},
		{"a lease that is alone, with a cap", capped, 1, 2 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(withDefaults(c.scenario), Variants()[c.variant], Enforced, 1)
			defer n.engine.Close()
			const from, to = 40 * time.Second, 100 * time.Second
			n.run(from)
			last, reads := n.read, 0
			for at := from; at <= to; at += 100 * ms {
				n.run(at)
				if n.read != last {
					last, reads = n.read, reads+1
				}
			}
			if want := int((to - from) / c.every); reads < want-1 || reads > want+1 {
				t.Errorf("the processes were read %d times in a minute, want %d", reads, want)
			}
			if got := n.samples.Since() != 0; got != c.series {
				t.Errorf("the series was read: %v, want %v", got, c.series)
			}
		})
	}
}

// TestALeaseThatJoinsHidesNoWork checks that the time whose series was not read, because a lease was alone, is not taken for
// idle time of that lease: it kept the GPU busy, and has its slices at once.
func TestALeaseThatJoinsHidesNoWork(t *testing.T) {
	for _, v := range []Variant{Variants()[1], Variants()[8], Variants()[15]} {
		for seed := range uint64(8) {
			late := training(70)
			late.From = time.Minute
			n := newNode(withDefaults(Scenario{Loads: []Load{training(30), late}}), v, Enforced, seed)
			for at := late.From; at < late.From+20*time.Second; at += 200 * ms {
				n.run(at)
				if u := n.scheduler.Usage(at); u[0].Idle || len(u) > 1 && u[1].Idle {
					t.Errorf("%s: a lease counts as idle at %v", v.Name, at)
					break
				}
			}
			n.engine.Close()
		}
	}
}
