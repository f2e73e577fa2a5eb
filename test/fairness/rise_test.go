package fairness

import (
	"testing"
	"time"
)

// TestLittleWorkIsNotFrozen checks that a lease with a small share that has work now and then is not frozen for what it might go on to use.
func TestLittleWorkIsNotFrozen(t *testing.T) {
	const seeds, warm, long = 4, time.Minute, 4 * time.Minute
	now := Program{Work: 20 * ms, Think: 15 * time.Second}
	for _, share := range []float64{1, 2, 4, 5, 10} {
		for _, others := range [][]Load{{training(100 - share)}, {training(50 - share/2), training(50 - share/2)}} {
			var frozen time.Duration
			for seed := range uint64(seeds) {
				n := newNode(withDefaults(Scenario{Loads: append([]Load{does(share, now)}, others...)}), Variants()[1], Enforced, seed+1)
				n.run(warm)
				before := n.scheduler.Usage(n.now())[0].Frozen
				n.run(warm + long)
				frozen += n.scheduler.Usage(n.now())[0].Frozen - before
				n.engine.Close()
			}
			if frozen > time.Second {
				t.Errorf("%v %% next to %d trainings: frozen for %v in %v", share, len(others), frozen, seeds*long)
			}
		}
	}
}

// TestTheRuleWaits checks that the rule is not asked each millisecond while a lease above its share may still use what is left of it.
func TestTheRuleWaits(t *testing.T) {
	const warm, long = time.Minute, 2 * time.Minute
	loader := Program{Work: 40 * ms, Think: 20 * ms}
	for _, share := range []float64{45, 48} {
		for seed := uint64(1); seed <= 2; seed++ {
			n := newNode(withDefaults(Scenario{Loads: []Load{does(share, loader), training(100 - share)}}), Variants()[1], Enforced, seed)
			n.run(warm)
			soon := 0
			for at := warm; at < warm+long; {
				if n.wake > n.now() && n.wake-n.now() <= time.Millisecond+time.Microsecond {
					soon++
				}
				at = max(min(n.wake, n.reads, at+100*ms), at+time.Microsecond)
				n.run(at)
			}
			n.engine.Close()
			if soon > 200 {
				t.Errorf("%v %%, seed %d: asked again after a millisecond %d times in %v", share, seed, soon, long)
			}
		}
	}
}

// TestJustBelowItsShareIsHardlyFrozen checks that a lease that uses a little less than its share, which is within the error of the samples
// over ten seconds, is frozen for no more than a second of each minute.
func TestJustBelowItsShareIsHardlyFrozen(t *testing.T) {
	const seeds, warm, minutes = 6, time.Minute, 5
	for _, c := range []struct{ share, used float64 }{{45, 38}, {30, 24}, {20, 16}} {
		// With equal turns it waits as long for the training as it works.
		host := 100 - 2*c.used
		l := does(c.share, Program{Work: time.Duration(c.used / 2 * float64(ms)), Think: time.Duration(host / 2 * float64(ms))})
		for _, v := range []Variant{Variants()[1], Variants()[3]} {
			var frozen time.Duration
			for seed := range uint64(seeds) {
				n := newNode(withDefaults(Scenario{Loads: []Load{l, training(100 - c.share)}}), v, Enforced, seed+1)
				n.run(warm)
				before := n.scheduler.Usage(n.now())[0].Frozen
				n.run(warm + minutes*time.Minute)
				frozen += n.scheduler.Usage(n.now())[0].Frozen - before
				n.engine.Close()
			}
			each := frozen / seeds / minutes
			t.Logf("%s: %v %% of %v %%: frozen for %.2f s of a minute", v.Name, c.used, c.share, each.Seconds())
			if each > time.Second {
				t.Errorf("%s: with %v %% of its %v %% it is frozen for %v of each minute", v.Name, c.used, c.share, each)
			}
		}
	}
}
