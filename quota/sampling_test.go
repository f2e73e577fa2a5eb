package quota

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const mebi = 1 << 20

// The interval is the time in which the headroom fills, between 20 ms and the longest.
func TestSamplingInterval(t *testing.T) {
	for _, tc := range []struct {
		name     string
		headroom uint64
		known    bool
		rate     float64 // learned, in GiB/s
		want     time.Duration
	}{
		{"nothing can be exceeded", 0, false, 0, time.Second},
		{"far away", 100 * gibi, true, 0, time.Second},
		{"half a second away", 10 * gibi, true, 0, 500 * time.Millisecond},
		{"close", gibi, true, 0, 50 * time.Millisecond},
		{"at the limit", 0, true, 0, 20 * time.Millisecond},
		{"a fast program was seen", 10 * gibi, true, 200, 50 * time.Millisecond},
		{"a slow program may become fast", 10 * gibi, true, 1, 500 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s Sampling
			s.Read(0, 0, Headroom{}, time.Second)
			s.Read(100*time.Millisecond, uint64(tc.rate*gibi/10), Headroom{}, time.Second)
			if got := s.Next(100*time.Millisecond, Headroom{Bytes: tc.headroom, Known: tc.known}, time.Second).Round(
				time.Millisecond,
			); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// The processes are listed when the total has moved, while a grant is close to its limit, and at least every few seconds.
func TestProcessesAreListedWhenTheTotalMoved(t *testing.T) {
	for _, tc := range []struct {
		name  string
		used  func(at time.Duration) uint64
		close bool
		want  int // lists in 30 s, after the first
	}{
		{"nothing moves", func(time.Duration) uint64 { return gibi }, false, 10},
		{"a little moves", func(at time.Duration) uint64 { return gibi + uint64(at.Milliseconds()) }, false, 29},
		{"one context more", func(at time.Duration) uint64 {
			if at < 500*time.Millisecond {
				return gibi
			}
			return gibi + 300*mebi
		}, false, 10},
		{"a grant is close to its limit", func(time.Duration) uint64 { return gibi }, true, 115},
		{"it grows by 640 MiB a second", func(at time.Duration) uint64 { return gibi + uint64(at.Seconds()*640)*mebi }, false, 299},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s Sampling
			lists := 0
			for at := time.Duration(0); at < 30*time.Second; at += 20 * time.Millisecond {
				if s.Read(at, tc.used(at), Headroom{Close: tc.close}, time.Second) {
					s.Listed(at, tc.used(at))
					lists++
				}
			}
			if got := lists - 1; got < tc.want-1 || got > tc.want+1 {
				t.Errorf("%d lists, want %d", got, tc.want)
			}
		})
	}
}

// However much a reading costs, the driver's time stays within the budget; only while memory runs out lists are made at once as
// long as the credit for that lasts, and after that one in five seconds, also when the budget does not pay for it.
func TestSamplingKeepsItsBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Sampling
		read := time.Duration(rapid.IntRange(5, 100).Draw(t, "µs of a reading")) * time.Microsecond
		list := time.Duration(rapid.IntRange(100, 9000).Draw(t, "µs of a list")) * time.Microsecond
		urgent, moving := rapid.Bool().Draw(t, "urgent"), rapid.Bool().Draw(t, "moving")
		headroom := Headroom{Bytes: 100 * gibi, Known: true, Close: urgent}
		if urgent {
			headroom.Bytes = 0
		}
		var spent time.Duration
		at, used := time.Duration(0), uint64(0)
		s.Spent(at, spent)
		for at < 2*time.Minute {
			spent += read
			if moving {
				used += 100 * mebi
			}
			if s.Read(at, used, headroom, time.Second) {
				spent += list
				s.Listed(at, used)
			}
			s.Spent(at, spent)
			perSecond, owed := DriverBudget, time.Duration(0)
			if urgent && moving {
				perSecond = max(perSecond, (list+50*read)/5) // A reading in 100 ms and a list in 5 s are always made.
				owed = DriverDebt
			}
			if most := time.Duration(at.Seconds()*float64(perSecond)) + DriverCredit + owed + list + 10*read; spent > most {
				t.Fatalf("at %v the driver spent %v, the most is %v", at, spent, most)
			}
			next := s.Next(at, headroom, time.Second)
			if next < shortestInterval || next > costlyInterval {
				t.Fatalf("the next reading is in %v", next)
			}
			at += next
		}
		if load, exceeded := s.DriverLoad(at); exceeded && load < DriverBudget {
			t.Fatalf("%v exceeds the budget", load)
		}
	})
}

// The lists of a driver that takes too long are rare but do not end, and the load is reported. While an offender is above its
// limit they are as frequent as they have to be.
func TestSamplingWithASlowDriver(t *testing.T) {
	for _, tc := range []struct {
		name        string
		list        time.Duration
		over        bool
		least, most int // lists in two minutes
		load        time.Duration
	}{
		{"within the budget", 50 * time.Millisecond, false, 5, 8, 0},
		{"above the budget", 100 * time.Millisecond, false, 4, 5, 3 * time.Millisecond},
		{"an offender", 50 * time.Millisecond, true, 20, 30, 5 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s Sampling
			var spent, at time.Duration
			lists, headroom := 0, Headroom{Known: true, Close: true, Over: tc.over}
			for at < 2*time.Minute {
				if spent += 100 * time.Microsecond; s.Read(at, gibi, headroom, time.Second) {
					spent += tc.list
					lists++
					s.Listed(at, gibi)
				}
				s.Spent(at, spent)
				at += s.Next(at, headroom, time.Second)
			}
			if lists < tc.least || lists > tc.most {
				t.Errorf("%d lists of %v in two minutes, want %d to %d", lists, tc.list, tc.least, tc.most)
			}
			if load, exceeded := s.DriverLoad(at); exceeded != (tc.load > 0) || load < tc.load {
				t.Errorf("the load is reported as %v a second, exceeded %v; want %v at least", load, exceeded, tc.load)
			}
		})
	}
}

// A process that starts on a GPU where nothing moved is listed within a second, although lists cost more than half of the credit.
func TestAProcessThatStartsIsListedSoon(t *testing.T) {
	var s Sampling
	var spent, at time.Duration
	used, started, seen := uint64(gibi), time.Duration(0), 0
	for at < 10*time.Minute {
		if at > started+47*time.Second {
			used, started = used+300*mebi, at
		}
		if spent += 500 * time.Microsecond; s.Read(at, used, Headroom{}, time.Second) {
			if spent += 12 * time.Millisecond; s.Moved() > 0 {
				if seen++; at > started+time.Second {
					t.Errorf("the process that started at %v was listed at %v", started, at)
				}
			}
			s.Listed(at, used)
		}
		s.Spent(at, spent)
		at += s.Next(at, Headroom{}, time.Second)
	}
	if seen < 12 {
		t.Errorf("%d starts were seen", seen)
	}
	if load := spent.Seconds() / at.Seconds(); load > 1.05*DriverBudget.Seconds() {
		t.Errorf("the driver spent %.2f ms a second", load*1000)
	}
}

// While nothing moves, readings leave a part of the budget, however long a list takes.
func TestReadingsOfAnUnchangedGPULeaveSomeBudget(t *testing.T) {
	for _, list := range []time.Duration{time.Millisecond, 4 * time.Millisecond, 12 * time.Millisecond, 18 * time.Millisecond} {
		var s Sampling
		var spent, at, atMinute time.Duration
		lists := 0
		for at < 5*time.Minute {
			if spent += 50 * time.Microsecond; s.Read(at, gibi, Headroom{}, time.Second) {
				spent += list
				lists++
				s.Listed(at, gibi)
			}
			if at < time.Minute {
				atMinute = spent
			}
			s.Spent(at, spent)
			at += s.Next(at, Headroom{}, time.Second)
		}
		if load := (spent - atMinute).Seconds() / 240; load > 0.9*DriverBudget.Seconds() {
			t.Errorf("a list takes %v: the driver spent %.2f ms a second", list, load*1000)
		}
		if lists < 15 {
			t.Errorf("a list takes %v: %d lists in five minutes", list, lists)
		}
	}
}

// A fill rate is forgotten slowly.
func TestFillRateIsForgotten(t *testing.T) {
	var s Sampling
	s.Read(0, 0, Headroom{}, time.Second)
	s.Read(100*time.Millisecond, 10*gibi, Headroom{}, time.Second) // 100 GiB/s
	for i := range 60 {
		s.Read(time.Duration(i+1)*time.Second, 10*gibi, Headroom{}, time.Second)
	}
	if got := s.Rate() / gibi; got < 50 || got > 70 {
		t.Errorf("after a minute the rate is %.0f GiB/s", got)
	}
}

// While a grant stays close to its limit, half of the credit is kept: when memory starts to run out after that, the
// processes are listed at once.
func TestCreditIsKeptForTheMomentWhenMemoryRunsOut(t *testing.T) {
	var s Sampling
	var spent, at time.Duration
	used, headroom := uint64(gibi), Headroom{Bytes: 100 * mebi, Known: true, Close: true}
	step := func() (listed bool) {
		if spent += 12 * time.Microsecond; s.Read(at, used, headroom, time.Second) {
			spent += 4500 * time.Microsecond
			s.Listed(at, used)
			listed = true
		}
		s.Spent(at, spent)
		at += s.Next(at, headroom, time.Second)
		return listed
	}
	for at < 2*time.Minute {
		step()
	}
	for range 3 {
		before := at
		used, headroom.Bytes = used+100*mebi, 0
		if !step() || at > before+100*time.Millisecond {
			t.Errorf("100 MiB more: listed %v, the next reading after %v", !s.listed || s.listedAt == before, at-before)
		}
	}
}
