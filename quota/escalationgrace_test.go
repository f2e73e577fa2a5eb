package quota

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// evader is a program above its limit that ends, or frees its memory, shortly before each grace is over: before SIGTERM, and, as it
// ignores that, before SIGKILL. Then it is there again.
type evader struct {
	name    string
	inPlace bool
	low     time.Duration // how long it is within its limit each time; 0: no measurement sees it
	another bool          // it is another lease then
	ends    bool          // it is another process then, of the same lease unless another is set

	number     int
	since      time.Duration  // above its limit
	terminated *time.Duration // when this process got SIGTERM
	until      time.Duration  // within its limit
	stops      int
}

// account is what is measured of it.
func (v *evader) account(now, grace time.Duration) MemoryAccount {
	a := MemoryAccount{ID: v.name, Limit: 30 * gibi, Policy: OveruseKill, Grace: grace}
	due := v.since + grace
	if v.terminated != nil && *v.terminated > v.since {
		due = *v.terminated + grace
	}
	if now >= v.until && now >= due-500*time.Millisecond {
		v.next(now)
	}
	use := 40.0
	if now < v.until {
		use = 0
	}
	if v.another && now < v.until {
		return a // It has no lease.
	}
	a.Leases = uses(use)
	a.Leases[0].Lease, a.Leases[0].InPlace = fmt.Sprint(v.name, v.number), v.inPlace
	return a
}

func (v *evader) lease() string { return fmt.Sprint(v.name, v.number) }

// next frees the memory, as another process if it ends.
func (v *evader) next(now time.Duration) {
	v.until, v.since = now+v.low, now+v.low
	if v.ends {
		v.terminated = nil
	}
	if v.another {
		v.number++
	}
}

// A tenant whose program frees its memory, ends or is started again before each grace is over has no grace any more after a few times:
// each time it is stopped within seconds. It does not keep others from being stopped either.
func TestNoEscapeFromTheGrace(t *testing.T) {
	const grace, tick, whole = 10 * time.Second, 250 * time.Millisecond, 10 * time.Minute
	for _, v := range []evader{
		{name: "a container that is started again", inPlace: true, ends: true, low: 2 * time.Second},
		{name: "and is measured only above its limit", inPlace: true, ends: true},
		{name: "an attached process that frees memory for a moment", inPlace: true, low: 2 * time.Second},
		{name: "gpushare run in a loop", another: true, ends: true, low: 2 * time.Second},
		{name: "a supervisor in a lease", ends: true, low: 2 * time.Second},
	} {
		t.Run(v.name, func(t *testing.T) {
			var l Escalation
			var longest time.Duration
			otherStopped := -time.Second
			for now := time.Duration(0); now < whole; now += tick {
				before := v.lease()
				process := v.terminated
				a := v.account(now, grace)
				if v.inPlace && process != nil && v.terminated == nil {
					l.Exited(before)
				}
				list := []MemoryAccount{a}
				if now >= whole/2 && otherStopped < 0 { // Another begins above its limit, less than this one in proportion.
					other := MemoryAccount{ID: "other", Limit: 30 * gibi, Policy: OveruseKill, Grace: grace, Leases: usesInPlace(31)}
					other.Leases[0].Lease = "other"
					list = append(list, other)
				}
				if now >= whole/4 && now < whole/2 {
					longest = max(longest, now-v.since)
				}
				if len(a.Leases) == 0 {
					list = slices.Delete(list, 0, 1)
				}
				for _, act := range l.Evaluate(now, DeviceMemory{}, list) {
					switch {
					case act.Kind == MemoryStop && act.Lease == "other":
						otherStopped = now - whole/2
						l.Terminated(act.Lease, now)
					case act.Kind == MemoryStop:
						v.stops++
						v.terminated = &now
						l.Terminated(act.Lease, now)
					case act.Kind == MemoryKill:
						l.Killed(act.Lease, now)
						v.ends, v.another = true, v.another || !v.inPlace
						lease := v.lease()
						v.next(now)
						if v.inPlace {
							l.Exited(lease)
						}
					}
				}
			}
			t.Logf("above its limit for at most %v, %d stops, the other after %v", longest, v.stops, otherStopped)
			if most := shortestGrace + stopRetry + 2*tick; longest > most {
				t.Errorf("a process was above its limit for %v, want at most %v", longest, most)
			}
			if v.stops < 100 {
				t.Errorf("stopped %d times", v.stops)
			}
			if otherStopped < 0 || otherStopped > time.Minute {
				t.Errorf("another was stopped after %v", otherStopped)
			}
		})
	}
}

// A program that is above its limit for a short time now and then has its whole grace each time.
func TestGraceReturns(t *testing.T) {
	var l Escalation
	for now := time.Duration(0); now < time.Hour; now += 250 * time.Millisecond {
		use := 20.0
		if now%(2*time.Minute) < 9*time.Second {
			use = 32
		}
		list := []MemoryAccount{{ID: "g", Limit: 30 * gibi, Policy: OveruseKill, Grace: 10 * time.Second, Leases: usesInPlace(use)}}
		for _, a := range l.Evaluate(now, DeviceMemory{}, list) {
			if a.Kind == MemoryOver && a.Delay != 10*time.Second {
				t.Errorf("at %v it has %v", now, a.Delay)
			}
			if a.Kind == MemoryStop {
				t.Fatalf("at %v it is stopped", now)
			}
		}
	}
}

// A program that ends on SIGTERM has the whole grace between SIGTERM and SIGKILL the next time, too.
func TestGraceToEndIsNotUsedByAnExit(t *testing.T) {
	var l Escalation
	use, exits := 32.0, time.Duration(-1)
	stops := 0
	for now := time.Duration(0); now < 5*time.Minute; now += 250 * time.Millisecond {
		if exits >= 0 && now >= exits {
			exits = -1
			l.Exited("a")
		}
		list := []MemoryAccount{{ID: "g", Limit: 30 * gibi, Policy: OveruseKill, Grace: 10 * time.Second, Leases: usesInPlace(use)}}
		for _, a := range l.Evaluate(now, DeviceMemory{}, list) {
			switch a.Kind {
			case MemoryKill:
				t.Fatalf("at %v it is killed", now)
			case MemoryStop:
				if stops++; stops < 3 && a.Delay < 9*time.Second {
					t.Errorf("stop %d: %v until SIGKILL", stops, a.Delay)
				}
				l.Terminated(a.Lease, now)
				exits = now + 500*time.Millisecond
			case MemoryNotice, MemoryOver, MemoryClear, MemoryFreeze, MemoryThaw, MemoryLeak, MemoryPressure:
			}
		}
	}
	if stops < 10 {
		t.Errorf("stopped %d times", stops)
	}
}

// A lease whose processes that got SIGTERM have ended is judged again a moment later: its next process gets SIGTERM first, and soon.
func TestProcessesThatFollow(t *testing.T) {
	for _, job := range []bool{false, true} {
		var l Escalation
		var got []string
		for s := range 36 {
			now := time.Duration(s) * time.Second
			if s == 13 || s == 17 {
				l.Exited("a")
			}
			list := usesInPlace(40)
			list[0].Job = job
			for _, a := range l.Evaluate(now, DeviceMemory{}, []MemoryAccount{{ID: "g", Limit: 30 * gibi, Policy: OveruseKill, Grace: 10 * time.Second, Leases: list}}) {
				got = append(got, short(s, a))
				sent(&l, a, now)
			}
		}
		want := []string{"0 over notified, 10s", "10 stop a, 10s", "14 stop a, 7s", "18 stop a, 4s", "22 kill a"}
		if !slices.Equal(got, want) {
			t.Errorf("job %v: %q", job, got)
		}
	}
}
