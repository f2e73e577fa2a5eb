package readings

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/gpu"
)

const ms = 1000 // µs

// alternate makes phases of two processes with breaks, and the samples that a driver would report for them.
func alternate(name func(r *rand.Rand, phases []Phase, at uint64) int) ([]Phase, []gpu.UtilSample) {
	const period = 139 * ms
	r := rand.New(rand.NewPCG(1, 2))
	var phases []Phase
	at := uint64(1_000_000_000)
	for i := range 400 {
		length := uint64(40+r.IntN(200)) * ms
		phases = append(phases, Phase{PID: 10 + i%2, From: at, To: at + length})
		at += length + uint64(r.IntN(60))*ms
	}
	var samples []gpu.UtilSample
	for t := phases[0].From + period; t < at; t += period {
		if pid := name(r, phases, t); pid != 0 {
			samples = append(samples, gpu.UtilSample{PID: pid, Time: t, SM: 90})
		}
	}
	return phases, samples
}

func TestFindNaming(t *testing.T) {
	const period = 139 * ms
	for _, c := range []struct {
		name string
		pick func(r *rand.Rand, phases []Phase, at uint64) int
		want string
	}{
		{"instant", func(_ *rand.Rand, phases []Phase, at uint64) int {
			_, on, _ := during(phases, at, period, 0)
			return on
		}, "the process that runs when the sample is taken"},
		{"last", func(_ *rand.Rand, phases []Phase, at uint64) (last int) {
			for _, p := range phases {
				if p.From < at && p.To > at-period {
					last = p.PID
				}
			}
			return last
		}, "the process that ran last in the period"},
		{"period", func(r *rand.Rand, phases []Phase, at uint64) int {
			parts, _, _ := during(phases, at, period, 0)
			x := r.Float64()
			for _, pid := range []int{10, 11} {
				if x -= parts[pid]; x < 0 {
					return pid
				}
			}
			return 0
		}, "one of the processes that ran in the period"},
	} {
		phases, samples := alternate(c.pick)
		if got := FindNaming(samples, phases, period, 5*ms).String(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", c.name, got)
		}
		if got := FindNaming(samples[:8], phases, period, 5*ms).String(); !strings.HasPrefix(got, "undecided") {
			t.Errorf("%s with 8 samples: %s", c.name, got)
		}
	}
}

func TestFindClock(t *testing.T) {
	list := func(newest func(r Reading) uint64) (out []Reading) {
		for i := range uint64(20) {
			r := Reading{Since1970: 1_700_000_000_000_000 + i*50*ms, Boot: 90_000_000 + i*50*ms}
			r.Series = []gpu.SeriesSample{{Time: newest(r), Percent: 99}}
			out = append(out, r)
		}
		return out
	}
	for _, c := range []struct {
		name   string
		newest func(r Reading) uint64
		want   Clock
		fails  bool
	}{
		{"since 1970", func(r Reading) uint64 { return r.Since1970 - 70*ms }, Epoch, false},
		{"since boot", func(r Reading) uint64 { return r.Boot - 70*ms }, Boot, false},
		{"an unknown clock", func(Reading) uint64 { return 42 }, "", true},
	} {
		clock, lag, err := FindClock(list(c.newest))
		if clock != c.want || (err != nil) != c.fails || !c.fails && lag != 70*ms {
			t.Errorf("%s: %q, %d µs, %v", c.name, clock, lag, err)
		}
	}
	if _, _, err := FindClock(nil); err == nil {
		t.Error("a clock was found without samples")
	}
}

func TestFindGaps(t *testing.T) {
	g, ok := FindGaps([]uint64{100, 239, 239, 378, 517, 656, 795, 10_000}, 100, 800)
	if !ok || g != (Gaps{139, 139, 139}) {
		t.Errorf("%+v, %v", g, ok)
	}
	if _, ok := FindGaps([]uint64{1, 2, 3}, 0, 10); ok {
		t.Error("two gaps were enough")
	}
}

func TestReleased(t *testing.T) {
	busy, idle := 80, 0
	list := []Reading{
		{Boot: 10, Used: 900, Utilization: &busy},
		{Boot: 20, Used: 900, Utilization: &busy},
		{Boot: 30, Used: 100, Utilization: &busy},
		{Boot: 40, Used: 100, Utilization: &idle},
	}
	if d, ok := Released(list, 15, 200); !ok || d != 15 {
		t.Errorf("%d, %v", d, ok)
	}
	if _, ok := Released(list, 15, 50); ok {
		t.Error("memory that is never released was released")
	}
	if d := BusyAfter(list, 15); d != 15 {
		t.Errorf("busy for %d", d)
	}
}

func TestFindGrowth(t *testing.T) {
	var list []Reading
	for i := range uint64(21) { // 1 GiB a second, then it ends
		list = append(list, Reading{Boot: i * 50_000, Used: 1<<30 + min(i, 20)*(1<<30)/20})
	}
	list = append(list, Reading{Boot: 2_000_000, Used: 1 << 30})
	g, ok := FindGrowth(list, 1<<30)
	if !ok || g.Most != 1<<30 || g.Rate < 0.99*(1<<30) || g.Rate > 1.01*(1<<30) {
		t.Errorf("%+v, %v", g, ok)
	}
	if _, ok := FindGrowth(list[:1], 1<<30); ok {
		t.Error("memory that does not grow grew")
	}
}
