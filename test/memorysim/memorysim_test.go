package memorysim

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/quota"
	"github.com/gpushare/gpushare/test/enumeration"
)

const seeds = 1000

// play runs all seeds of a backend, or a sample of them.
func play(t *testing.T, backend Backend) []Result {
	t.Helper()
	var all []Result
	for seed := uint64(1); seed <= seeds; seed += uint64(enumeration.Stride(20)) {
		r, err := Run(t.Context(), seed, backend)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// Under the escalation no lease that stays within its grant is frozen or stopped, whatever its neighbours do, and no lease is
// killed before the grace after its SIGTERM is over.
func TestReactive(t *testing.T) {
	t.Parallel()
	runs := play(t, Reactive)
	for i := range runs {
		if r := &runs[i]; len(r.Harmed)+len(r.Early) > 0 {
			t.Errorf("seed %d: harmed %v, killed too early %v", r.Seed, r.Harmed, r.Early)
		}
	}
	for _, s := range Summarize(runs) {
		t.Logf("%+v", s)
	}
}

// With a limit of the driver a lease gets no more than its grant, and no neighbour loses anything: neither its life nor memory
// that it was granted.
func TestCgroup(t *testing.T) {
	t.Parallel()
	runs := play(t, Cgroup)
	for i := range runs {
		r := &runs[i]
		if len(r.Harmed)+len(r.Early)+r.Starved > 0 {
			t.Errorf("seed %d: harmed %v, killed too early %v, %d out of memory", r.Seed, r.Harmed, r.Early, r.Starved)
		}
		for _, over := range r.Overshoot {
			if over > 0 {
				t.Errorf("seed %d: %d bytes above the limit", r.Seed, over)
			}
		}
	}
}

// Without enforcement neighbours run out of memory: else the other tests prove nothing.
func TestWithoutEnforcement(t *testing.T) {
	t.Parallel()
	runs := play(t, None)
	all := Summarize(runs)[len(Rates())]
	t.Logf("%+v", all)
	if all.Starved*10 < all.Within {
		t.Errorf("%d of %d leases within their grant saw out of memory", all.Starved, all.Within)
	}
}

// The driver's time for readings stays within what the daemon may use, with the readings of one minute.
func TestReadings(t *testing.T) {
	t.Parallel()
	for _, r := range play(t, Reactive) {
		if most := quota.DriverBudget*60 + quota.DriverCredit + quota.DriverDebt + 10*time.Millisecond; r.Driver > most {
			t.Errorf("seed %d: readings took %v of a minute, more than %v", r.Seed, r.Driver, most)
		}
	}
}
