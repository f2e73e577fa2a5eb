package quota

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/internal/owed"
)

const gibi = 1 << 30

// uses returns leases a, b, … that use these GiB; a negative number is unknown.
func uses(list ...float64) []MemoryUse {
	var out []MemoryUse
	for i, g := range list {
		u := MemoryUse{Lease: string(rune('a' + i))}
		if g >= 0 {
			v := uint64(g * gibi)
			u.Used = &v
		}
		out = append(out, u)
	}
	return out
}

// usesInPlace is uses for leases that are attached in place.
func usesInPlace(list ...float64) []MemoryUse {
	out := uses(list...)
	for i := range out {
		out[i].InPlace = true
	}
	return out
}

// usesJob is uses for a job of an engine.
func usesJob(list ...float64) []MemoryUse {
	out := usesInPlace(list...)
	for i := range out {
		out[i].Job = true
	}
	return out
}

func TestEscalation(t *testing.T) {
	// Every case is the course of one account with a limit of 30 GiB and a grace of 10 s, one sample a second. at[n] is the use
	// from second n on; nil: all leases have ended.
	type course map[int][]MemoryUse
	for _, tc := range []struct {
		name string
		do   OverusePolicy
		at   course
		end  int
		want []string
	}{
		{"within", OveruseKill, course{0: uses(20)}, 60, nil},
		{"exactly the limit is granted", OveruseKill, course{0: uses(30)}, 60, []string{"1 notice"}},
		{"a notice needs two samples", OveruseKill, course{0: uses(28), 1: uses(10), 2: uses(28), 3: uses(10)}, 20, nil},
		{"a notice and its end", OveruseNotify, course{0: uses(28), 10: uses(26), 20: uses(25)}, 30, []string{"1 notice", "25 clear"}},
		{"notify never acts", OveruseNotify, course{0: uses(40)}, 60, []string{"0 over notified"}},
		{"observe notifies no tenant", OveruseObserve, course{0: uses(40), 20: uses(1)}, 60, []string{"0 over", "25 clear"}},
		{
			"kill in stages until the memory is freed", OveruseKill,
			course{0: uses(20), 5: uses(31), 40: nil},
			60,
			[]string{"5 over notified, 10s", "7 freeze a until 12", "12 thaw a", "13 freeze a until 18", "15 thaw a", "15 stop a, 10s", "25 kill a", "30 kill a", "35 kill a"},
		},
		{"it ends on SIGTERM", OveruseKill, course{0: uses(31), 12: nil}, 60, []string{"0 over notified, 10s", "2 freeze a until 7", "7 thaw a", "8 freeze a until 13", "10 thaw a", "10 stop a, 10s", "17 clear"}},
		{"it frees memory in its grace", OveruseKill, course{0: uses(31), 7: uses(30.8), 9: uses(20)}, 60, []string{"0 over notified, 10s", "2 freeze a until 7", "7 thaw a", "8 freeze a until 13", "9 thaw a", "14 clear"}},
		{"it is not interrupted while it frees memory", OveruseKill, course{0: uses(31), 2: uses(30.8), 4: uses(30.6), 6: uses(30.4), 8: uses(20)}, 60, []string{"0 over notified, 10s", "13 clear"}},
		{"it frees memory after SIGTERM", OveruseKill, course{0: uses(31), 15: uses(20)}, 60, []string{"0 over notified, 10s", "2 freeze a until 7", "7 thaw a", "8 freeze a until 13", "10 thaw a", "10 stop a, 10s", "20 clear"}},
		{"slightly below the limit does not reset the grace", OveruseKill, course{0: uses(31), 5: uses(29), 9: uses(31), 12: nil}, 13, []string{"0 over notified, 10s", "2 freeze a until 7", "5 thaw a", "10 stop a, 10s"}},
		{"at the limit no lease is stopped", OveruseKill, course{0: uses(31), 9: uses(30)}, 60, []string{"0 over notified, 10s", "2 freeze a until 7", "7 thaw a", "8 freeze a until 13", "9 thaw a"}},
		{"the largest lease of a grant is stopped", OveruseKill, course{0: uses(10, 15, 8), 12: {uses(10, 15, 8)[0], uses(10, 15, 8)[2]}}, 60, []string{"0 over notified, 10s", "0 freeze b until 5", "5 thaw b", "6 freeze b until 11", "10 thaw b", "10 stop b, 10s", "17 clear"}},
		{"unknown use stops no lease", OveruseKill, course{0: uses(31), 5: uses(-1)}, 60, []string{"0 over notified, 10s", "2 freeze a until 7", "7 thaw a"}},
		{"unknown use pauses, known use continues", OveruseKill, course{0: uses(31), 5: uses(-1), 30: uses(31), 32: nil}, 33, []string{"0 over notified, 10s", "2 freeze a until 7", "7 thaw a", "30 stop a, 10s"}},
		{"the known use alone is too much", OveruseKill, course{0: uses(31, 5), 5: uses(31, -1), 12: nil}, 13, []string{"0 over notified, 10s", "0 freeze a until 5", "5 thaw a", "6 freeze a until 11", "10 thaw a", "10 stop a, 10s"}},
		{"memory that is not freed", OveruseKill, course{0: uses(31), 50: nil}, 60, []string{"0 over notified, 10s", "2 freeze a until 7", "7 thaw a", "8 freeze a until 13", "10 thaw a", "10 stop a, 10s", "20 kill a", "25 kill a", "30 kill a", "35 leak a", "36 kill a", "41 kill a", "46 kill a"}},
		{"one process of a lease in place is stopped", OveruseKill, course{0: usesInPlace(31), 22: usesInPlace(20)}, 60, []string{"0 over notified, 10s", "10 stop a, 10s", "20 kill a", "27 clear"}},
		{"the next process of a lease in place gets SIGTERM before it is killed", OveruseKill, course{0: usesInPlace(31), 45: usesInPlace(20)}, 46, []string{"0 over notified, 10s", "10 stop a, 10s", "20 kill a", "40 stop a, 1s", "41 kill a"}},
		{"the rest of a job is killed although it is below the limit", OveruseKill, course{0: usesJob(40), 12: usesJob(10), 21: usesJob(0)}, 60, []string{"0 over notified, 10s", "10 stop a, 10s", "17 clear", "20 kill a"}},
		{"a job that ends on SIGTERM is not killed", OveruseKill, course{0: usesJob(40), 12: usesJob(0)}, 60, []string{"0 over notified, 10s", "10 stop a, 10s", "17 clear"}},
		{"a job that frees memory in its grace runs on", OveruseKill, course{0: usesJob(40), 8: usesJob(10)}, 60, []string{"0 over notified, 10s", "13 clear"}},
		{"freeze repeatedly", OveruseFreeze, course{0: uses(31), 40: nil}, 50, []string{"0 over notified, 10s", "10 freeze a until 15", "15 thaw a", "25 freeze a until 30", "30 thaw a", "45 clear"}},
		{"frozen when it grows", OveruseFreeze, course{0: uses(30.5), 3: uses(30.6), 5: uses(30.5)}, 12, []string{"0 over notified, 10s", "3 freeze a until 8", "8 thaw a"}},
		{"frozen at once when it is far above its limit", OveruseFreeze, course{0: uses(31.5)}, 12, []string{"0 over notified, 10s", "0 freeze a until 5", "5 thaw a"}},
		{"frozen again when it grows in a break", OveruseKill, course{0: uses(32), 6: uses(32.1)}, 9, []string{"0 over notified, 10s", "0 freeze a until 5", "5 thaw a", "6 freeze a until 11"}},
		{"frozen when it grows after SIGTERM", OveruseKill, course{0: uses(30.5), 12: uses(30.7), 14: nil}, 15, []string{"0 over notified, 10s", "2 freeze a until 7", "7 thaw a", "8 freeze a until 13", "10 thaw a", "10 stop a, 10s", "12 freeze a until 17", "14 thaw a"}},
		{"of a grant only the lease that grows is frozen besides the largest", OveruseKill, course{0: uses(20, 12, 3), 2: uses(20, 12, 3.5)}, 4, []string{"0 over notified, 10s", "0 freeze a until 5", "2 freeze c until 7"}},
		{"a lease in place is never frozen", OveruseFreeze, course{0: usesInPlace(40), 3: usesInPlace(50)}, 20, []string{"0 over notified, 10s"}},
		{"it ends while frozen", OveruseFreeze, course{0: uses(31), 12: nil}, 14, []string{"0 over notified, 10s", "10 freeze a until 15", "12 thaw a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l Escalation
			var got []string
			var leases []MemoryUse
			for s := range tc.end {
				if u, ok := tc.at[s]; ok {
					leases = u
				}
				for _, a := range l.Evaluate(time.Duration(s)*time.Second, DeviceMemory{}, []MemoryAccount{{ID: "g", Limit: 30 * gibi, Policy: tc.do, Grace: 10 * time.Second, Leases: leases}}) {
					got = append(got, short(s, a))
					sent(&l, a, time.Duration(s)*time.Second)
				}
			}
			// A final clear after all leases have ended need not be listed.
			want := tc.want
			if d := cmp.Diff(want, trim(got, want)); d != "" {
				t.Error(d)
			}
		})
	}
}

// trim drops a final clear that the expected list does not have.
func trim(got, want []string) []string {
	if n := len(got); n == len(want)+1 && strings.HasSuffix(got[n-1], "clear") {
		return got[:n-1]
	}
	return got
}

// sent reports to the escalation that a signal was sent.
func sent(l *Escalation, a MemoryAction, now time.Duration) {
	switch a.Kind {
	case MemoryStop:
		l.Terminated(a.Lease, now)
	case MemoryKill:
		l.Killed(a.Lease, now)
	}
}

// frozenBy lists the leases that the policy has frozen.
func frozenBy(e *Escalation) (leases []string) {
	for _, st := range e.accounts {
		for lease, o := range st.leases {
			if o.frozen != nil {
				leases = append(leases, lease)
			}
		}
	}
	return leases
}

func short(s int, a MemoryAction) string {
	out := fmt.Sprintf("%d %s", s, a.Kind)
	if a.Lease != "" {
		out += " " + a.Lease
	}
	if a.Kind == MemoryOver && a.Notify {
		out += " notified"
	}
	if a.Delay != 0 {
		out += fmt.Sprintf(", %v", a.Delay)
	}
	if a.Until != 0 {
		out += fmt.Sprintf(" until %v", a.Until.Seconds())
	}
	return out
}

func TestEscalationOneAtATime(t *testing.T) {
	var l Escalation
	mk := func(id string, used float64, lease string) MemoryAccount {
		a := MemoryAccount{ID: id, Limit: 10 * gibi, Policy: OveruseKill, Grace: 2 * time.Second, Leases: uses(used)}
		a.Leases[0].Lease = lease
		return a
	}
	var got []string
	for s := range 20 {
		list := []MemoryAccount{mk("x", 11, "xa"), mk("y", 15, "ya")}
		if s >= 6 {
			list[1].Leases = nil // the one furthest above its limit was stopped first
		}
		for _, a := range l.Evaluate(time.Duration(s)*time.Second, DeviceMemory{}, list) {
			if a.Kind == MemoryStop || a.Kind == MemoryKill {
				got = append(got, short(s, a))
			}
			sent(&l, a, time.Duration(s)*time.Second)
		}
	}
	want := []string{"2 stop ya, 2s", "4 kill ya", "11 stop xa, 2s", "13 kill xa", "18 kill xa"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestEscalationLowerLimitGivesFullGrace(t *testing.T) {
	var l Escalation
	limit := uint64(20 * gibi)
	var got []string
	for s := range 30 {
		if s == 8 {
			limit = 15 * gibi // in the middle of the grace
		}
		for _, a := range l.Evaluate(time.Duration(s)*time.Second, DeviceMemory{}, []MemoryAccount{{ID: "g", Limit: limit, Policy: OveruseKill, Grace: 10 * time.Second, Leases: uses(21)}}) {
			sent(&l, a, time.Duration(s)*time.Second)
			if a.Kind != MemoryFreeze && a.Kind != MemoryThaw {
				got = append(got, short(s, a))
			}
		}
	}
	if d := cmp.Diff([]string{"0 over notified, 10s", "8 over notified, 10s", "18 stop a, 10s", "28 kill a"}, got); d != "" {
		t.Error(d)
	}
}

// A lease above its limit under a policy that only reports gets the full grace when the policy becomes kill: by a new spec, and by
// another version, which sees the account for the first time. One that was always stopped above its limit is frozen at once.
func TestEscalationTightenedPolicyGivesFullGrace(t *testing.T) {
	for _, c := range []struct {
		name      string
		from      int // the second from which the policy is kill
		tightened bool
		want      []string
	}{
		{"by a spec", 8, false, []string{"0 over notified", "8 over notified, 10s", "10 freeze", "18 stop a, 10s", "28 kill a"}},
		{"by another version", 0, true, []string{"0 over notified, 10s", "2 freeze", "10 stop a, 10s", "20 kill a", "25 kill a"}},
		{"it was kill before", 0, false, []string{"0 over notified, 10s", "0 freeze", "10 stop a, 10s", "20 kill a", "25 kill a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l Escalation
			var got []string
			frozen := false
			for s := range 30 {
				a := MemoryAccount{
					ID:        "g",
					Limit:     20 * gibi,
					Policy:    OveruseNotify,
					Grace:     10 * time.Second,
					Tightened: c.tightened,
					Leases:    uses(28),
				}
				if s >= c.from {
					a.Policy = OveruseKill
				}
				for _, do := range l.Evaluate(time.Duration(s)*time.Second, DeviceMemory{}, []MemoryAccount{a}) {
					sent(&l, do, time.Duration(s)*time.Second)
					switch {
					case do.Kind == MemoryFreeze && !frozen:
						frozen = true
						got = append(got, fmt.Sprintf("%d freeze", s))
					case do.Kind != MemoryFreeze && do.Kind != MemoryThaw:
						got = append(got, short(s, do))
					}
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// A notice says whether something follows from it.
func TestNoticesThatNothingFollows(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  OverusePolicy
		never   bool
		reports bool
	}{
		{"observe", OveruseObserve, false, true},
		{"notify", OveruseNotify, false, true},
		{"freeze", OveruseFreeze, false, false},
		{"freeze of a lease that cannot be frozen", OveruseFreeze, true, true},
		{"kill", OveruseKill, true, false},
	} {
		list := uses(28)
		list[0].NeverFreeze = c.never
		var l Escalation
		for _, a := range l.Evaluate(0, DeviceMemory{}, []MemoryAccount{{ID: "g", Limit: 20 * gibi, Policy: c.policy, Leases: list}}) {
			if a.Kind == MemoryOver && strings.Contains(a.String(), "28 GiB of 20 GiB GPU memory (reported only)") != c.reports {
				t.Errorf("%s: %q", c.name, a.String())
			}
		}
	}
}

func TestMemoryMessages(t *testing.T) {
	a := MemoryAction{
		Kind:    MemoryOver,
		Account: "vision/dev",
		Lease:   "l-1",
		Used:    32*gibi + gibi/5,
		Limit:   30 * gibi,
		Delay:   10 * time.Second,
	}
	for do, want := range map[MemoryActionKind]string{
		MemoryNotice: "vision/dev uses 32.2 GiB of 30 GiB GPU memory: close to its limit",
		MemoryOver:   "vision/dev uses 32.2 GiB of 30 GiB GPU memory, more than granted: free memory within 10s",
		MemoryStop:   "vision/dev uses 32.2 GiB of 30 GiB GPU memory: lease l-1 gets SIGTERM and is killed after 10s",
		MemoryKill:   "vision/dev uses 32.2 GiB of 30 GiB GPU memory: lease l-1 did not end and is killed",
		MemoryLeak:   "the GPU memory of lease l-1 was not freed after it was killed",
	} {
		a.Kind = do
		if got := a.String(); got != want {
			t.Errorf("%s: %s", do, got)
		}
	}
}

// TestEscalationInvariants runs the escalation with random use and checks its invariants.
func TestEscalationInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Escalation
		now := time.Duration(0)
		n := rapid.IntRange(1, 3).Draw(t, "accounts")
		policy := make([]OverusePolicy, n)
		grace := make([]time.Duration, n)
		for i := range n {
			policy[i] = rapid.SampledFrom([]OverusePolicy{OveruseObserve, OveruseNotify, OveruseFreeze, OveruseKill}).Draw(t, "policy")
			grace[i] = time.Duration(rapid.IntRange(0, 10).Draw(t, "grace")) * time.Second
		}
		stopped, terminated := "", map[string]time.Duration{} // SIGTERM of this stop
		frozen := map[string]time.Duration{}
		overSince := map[string]time.Duration{}
		free, kill := map[string]time.Duration{}, map[string]time.Duration{} // what they have of their grace, as it was returned
		ended := map[string]bool{}                                           // a lease got SIGTERM
		above := map[string]time.Duration{}                                  // when they may last have used of it
		for range rapid.IntRange(5, 80).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(100, 2000).Draw(t, "ms")) * time.Millisecond
			var list []MemoryAccount
			certain := map[string]bool{}
			alive := map[string]bool{}
			for i := range n {
				if rapid.IntRange(0, 9).Draw(t, "present") == 0 {
					continue // The account vanishes.
				}
				a := MemoryAccount{ID: string(rune('x' + i)), Limit: 10 * gibi, Policy: policy[i], Grace: grace[i]}
				known := 0.0
				for k := range rapid.IntRange(0, 3).Draw(t, "leases") {
					g := float64(rapid.SampledFrom([]int{-1, 0, 3, 6, 9, 12}).Draw(t, "use"))
					u := uses(g)[0]
					u.Lease = fmt.Sprintf("%s%d", a.ID, k)
					alive[u.Lease] = true
					a.Leases = append(a.Leases, u)
					known += max(g, 0)
				}
				certain[a.ID] = known > 10
				list = append(list, a)
			}
			device := DeviceMemory{Reserve: gibi}
			if free := uint64(rapid.IntRange(0, 3).Draw(t, "free")) * gibi; free != 0 {
				free -= gibi / 2
				device.Free = &free
			}
			for account, st := range l.accounts {
				if st.over != nil {
					above[account] = now
				}
			}
			acts := l.Evaluate(now, device, list)
			for _, a := range acts {
				if a.Account == "" {
					continue
				}
				i := int(a.Account[0] - 'x')
				switch a.Kind {
				case MemoryOver:
					overSince[a.Account], free[a.Account] = now, a.Delay
					acts := policy[i] == OveruseFreeze || policy[i] == OveruseKill
					whole := now >= above[a.Account]+owed.Returns*grace[i] // Since then it was within its limit.
					if ended[a.Account] {
						whole = false
						if acts && a.Delay != 0 {
							t.Fatalf("at %v %s has a grace of %v, and a lease of it was ended for its memory", now, a.Account, a.Delay)
						}
					}
					if acts && (a.Delay > grace[i] || whole && a.Delay != grace[i]) {
						t.Fatalf(
							"at %v %s has %v of its grace of %v, last above its limit at %v",
							now,
							a.Account,
							a.Delay,
							grace[i],
							above[a.Account],
						)
					}
				case MemoryStop:
					if policy[i] != OveruseKill || !certain[a.Account] || now < overSince[a.Account]+free[a.Account] {
						t.Fatalf(
							"at %v stops %s under %s: certain %v, over since %v, grace %v", now, a.Lease, policy[i], certain[a.Account],
							overSince[a.Account], free[a.Account],
						)
					}
					if a.Delay > grace[i] || a.Delay < min(grace[i], time.Second) {
						t.Fatalf("%v between SIGTERM and SIGKILL, of a grace of %v", a.Delay, grace[i])
					}
					kill[a.Lease] = a.Delay
					if _, ok := frozen[a.Lease]; ok {
						t.Fatalf("%s gets SIGTERM while it is frozen", a.Lease)
					}
					if l.victim == nil || l.victim.lease != a.Lease {
						t.Fatalf("stops %s while it stops %+v", a.Lease, l.victim)
					}
					stopped = a.Lease
					delete(terminated, a.Lease)
					if rapid.Bool().Draw(t, "SIGTERM is sent") {
						terminated[a.Lease] = now
						ended[a.Account] = true
						l.Terminated(a.Lease, now)
					}
				case MemoryKill:
					at, ok := terminated[a.Lease]
					if a.Lease != stopped || !ok || now < at+kill[a.Lease] {
						t.Fatalf("at %v kills %s; %s got SIGTERM at %v, %v", now, a.Lease, stopped, at, ok)
					}
					if rapid.Bool().Draw(t, "SIGKILL is sent") {
						l.Killed(a.Lease, now)
					}
				case MemoryFreeze:
					if policy[i] != OveruseFreeze && policy[i] != OveruseKill || !certain[a.Account] || a.Until != now+5*time.Second {
						t.Fatalf("%+v under %s", a, policy[i])
					}
					frozen[a.Lease] = now
				case MemoryThaw:
					if _, ok := frozen[a.Lease]; !ok {
						t.Fatalf("thaws %s, which it did not freeze", a.Lease)
					}
					delete(frozen, a.Lease)
				}
			}
			for lease, since := range frozen {
				if now >= since+5*time.Second || !alive[lease] {
					t.Fatalf("at %v %s is still frozen since %v", now, lease, since)
				}
			}
			if got := len(frozenBy(&l)); got != len(frozen) {
				t.Fatalf("%d are frozen, but it knows %d", len(frozen), got)
			}
			if at, ok := l.Due(list); ok && at <= now {
				t.Fatalf("at %v the next measurement is due at %v", now, at)
			}
		}
	})
}

// Without the report that SIGTERM was sent a lease is never killed, and SIGTERM is tried again.
func TestNoKillWithoutSIGTERM(t *testing.T) {
	var l Escalation
	var got []string
	for s := range 40 {
		now := time.Duration(s) * time.Second
		for _, a := range l.Evaluate(now, DeviceMemory{}, []MemoryAccount{{ID: "g", Limit: 30 * gibi, Policy: OveruseKill, Grace: 3 * time.Second, Leases: uses(30.5)}}) {
			if a.Kind == MemoryStop || a.Kind == MemoryKill {
				got = append(got, short(s, a))
			}
			if a.Kind == MemoryStop && s == 6 {
				l.Terminated(a.Lease, now)
			}
			if a.Kind == MemoryKill && s >= 11 {
				l.Killed(a.Lease, now)
			}
		}
	}
	want := []string{
		"3 stop a, 3s",
		"4 stop a, 3s",
		"5 stop a, 3s",
		"6 stop a, 3s",
		"9 kill a",
		"10 kill a",
		"11 kill a",
		"16 kill a",
		"21 kill a",
		"27 kill a",
		"32 kill a",
		"37 kill a",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Of two offenders the second waits for its turn frozen: it does not grow meanwhile, except in breaks.
func TestSecondOffenderDoesNotGrow(t *testing.T) {
	var l Escalation
	used := map[string]float64{"x": 7, "y": 7}
	frozen := map[string]bool{}
	worst := 0.0
	for tick := range 60 * 50 {
		now := time.Duration(tick) * 20 * time.Millisecond
		var list []MemoryAccount
		for _, id := range []string{"x", "y"} {
			if !frozen[id] {
				used[id] += 5.0 / 50 // 5 GiB/s
			}
			worst = max(worst, used[id])
			a := MemoryAccount{ID: id, Limit: 8 * gibi, Policy: OveruseKill, Grace: 2 * time.Second, Leases: uses(used[id])}
			a.Leases[0].Lease = id
			list = append(list, a)
		}
		for _, a := range l.Evaluate(now, DeviceMemory{}, list) {
			switch a.Kind {
			case MemoryFreeze:
				frozen[a.Lease] = true
			case MemoryThaw:
				delete(frozen, a.Lease)
			case MemoryStop:
				l.Terminated(a.Lease, now) // It is ignored, and never killed.
			}
		}
	}
	if worst > 11 {
		t.Errorf("an offender at 5 GiB/s reached %.1f of 8 GiB in a minute", worst)
	}
	t.Logf("an offender at 5 GiB/s reached %.1f of 8 GiB in a minute", worst)
}

// High priority is stopped last, then the order is by the use in proportion to the limit, then by the growth. Every candidate
// is in the action, with its numbers.
func TestCandidates(t *testing.T) {
	var l Escalation
	account := func(id string, used float64, high bool) MemoryAccount {
		a := MemoryAccount{ID: id, Limit: 10 * gibi, Policy: OveruseKill, Grace: time.Second, HighPriority: high, Leases: uses(used)}
		a.Leases[0].Lease = id + "-lease"
		return a
	}
	var got []MemoryAction
	for s := range 3 {
		grown := 11 + float64(s)/2
		got = append(
			got,
			l.Evaluate(time.Duration(s)*time.Second, DeviceMemory{}, []MemoryAccount{
				account("high", 20, true),
				account("same", 12, false),
				account("grown", grown, false),
				account("less", 11, false),
				account("within", 9, false),
			})...)
		if i := slices.IndexFunc(got, func(a MemoryAction) bool { return a.Kind == MemoryStop }); i >= 0 && s < 2 {
			l.victim, l.nextStop = nil, 0 // Choose again.
			got = slices.Delete(got, i, i+1)
		}
	}
	i := slices.IndexFunc(got, func(a MemoryAction) bool { return a.Kind == MemoryStop })
	if i < 0 {
		t.Fatalf("no stop in %v", got)
	}
	var order []string
	for _, c := range got[i].Candidates {
		order = append(order, c.Account)
	}
	if d := cmp.Diff([]string{"grown", "same", "less", "high"}, order); d != "" || got[i].Lease != "grown-lease" {
		t.Errorf("stops %s of %v", got[i].Lease, order)
	}
	want := "grown grown-lease uses 12 GiB of 10 GiB (120 %), +1 GiB in 30 s; same same-lease uses 12 GiB of 10 GiB (120 %), +0 B in 30 s; less less-lease uses 11 GiB of 10 GiB (110 %), +0 B in 30 s; high high-lease uses 20 GiB of 10 GiB (200 %), +0 B in 30 s, high priority"
	if d := cmp.Diff(want, got[i].CandidateList()); d != "" {
		t.Error(d)
	}
}

// A node that only observes says once what it would do.
func TestDryRun(t *testing.T) {
	var l Escalation
	var got []string
	for s := range 30 {
		for _, a := range l.Evaluate(time.Duration(s)*time.Second, DeviceMemory{}, []MemoryAccount{{ID: "g", Limit: 30 * gibi, Policy: OveruseKill, Grace: 10 * time.Second, DryRun: true, Leases: uses(32)}}) {
			if a.Kind != MemoryOver && !a.DryRun || a.Notify {
				t.Errorf("%+v in a dry run", a)
			}
			got = append(got, fmt.Sprint(s, " ", a.String()))
		}
	}
	want := []string{
		"0 g uses 32 GiB of 30 GiB GPU memory, more than granted",
		"0 g uses 32 GiB of 30 GiB GPU memory: lease a would be frozen temporarily: it is far above its limit",
		"10 g uses 32 GiB of 30 GiB GPU memory: lease a would get SIGTERM and would be killed after 10s",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// When the GPU has less free memory than its reserve, offenders get no time to react; a lease within its limit is not frozen.
func TestPressure(t *testing.T) {
	var l Escalation
	var got []string
	free := uint64(2 * gibi)
	for s := range 8 {
		if s == 1 {
			free = gibi / 2
		}
		slight := MemoryAccount{ID: "slight", Limit: 10 * gibi, Policy: OveruseKill, Grace: time.Minute, Leases: uses(10.1)}
		within := MemoryAccount{ID: "within", Limit: 10 * gibi, Policy: OveruseKill, Grace: time.Minute, Leases: uses(9.9)}
		slight.Leases[0].Lease, within.Leases[0].Lease = "s", "w"
		for _, a := range l.Evaluate(time.Duration(s)*time.Second, DeviceMemory{Free: &free, Reserve: gibi}, []MemoryAccount{slight, within}) {
			got = append(got, short(s, a))
			if a.Kind == MemoryPressure && (len(a.Candidates) != 1 || a.Used != free) {
				t.Errorf("%+v", a)
			}
		}
	}
	want := []string{"0 over notified, 1m0s", "1 notice", "1 pressure", "1 freeze s until 6", "6 thaw s", "7 freeze s until 12"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A lease is thawed when its account is no longer listed.
func TestVanishedAccountIsThawed(t *testing.T) {
	var l Escalation
	l.Evaluate(0, DeviceMemory{}, []MemoryAccount{{ID: "g", Limit: 30 * gibi, Policy: OveruseFreeze, Leases: uses(40)}})
	if d := cmp.Diff([]string{"a"}, frozenBy(&l)); d != "" {
		t.Fatal(d)
	}
	got := l.Evaluate(time.Second, DeviceMemory{}, nil)
	if len(got) != 1 || got[0].Kind != MemoryThaw || got[0].Lease != "a" || len(frozenBy(&l)) != 0 {
		t.Errorf("got %v", got)
	}
}
