package quota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
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
			[]string{"5 over notified, 10s", "15 stop a, 10s", "25 kill a", "30 kill a", "35 kill a"},
		},
		{"it ends on SIGTERM", OveruseKill, course{0: uses(31), 12: nil}, 60, []string{"0 over notified, 10s", "10 stop a, 10s", "17 clear"}},
		{"it frees memory in its grace", OveruseKill, course{0: uses(31), 9: uses(20)}, 60, []string{"0 over notified, 10s", "14 clear"}},
		{"it frees memory after SIGTERM", OveruseKill, course{0: uses(31), 15: uses(20)}, 60, []string{"0 over notified, 10s", "10 stop a, 10s", "20 clear"}},
		{"slightly below the limit does not reset the grace", OveruseKill, course{0: uses(31), 5: uses(29), 9: uses(31), 12: nil}, 13, []string{"0 over notified, 10s", "10 stop a, 10s"}},
		{"at the limit no lease is stopped", OveruseKill, course{0: uses(31), 9: uses(30)}, 60, []string{"0 over notified, 10s"}},
		{"the largest lease of a grant is stopped", OveruseKill, course{0: uses(10, 15, 8), 12: {uses(10, 15, 8)[0], uses(10, 15, 8)[2]}}, 60, []string{"0 over notified, 10s", "10 stop b, 10s", "17 clear"}},
		{"unknown use stops no lease", OveruseKill, course{0: uses(31), 5: uses(-1)}, 60, []string{"0 over notified, 10s"}},
		{"unknown use pauses, known use continues", OveruseKill, course{0: uses(31), 5: uses(-1), 30: uses(31), 32: nil}, 33, []string{"0 over notified, 10s", "30 stop a, 10s"}},
		{"the known use alone is too much", OveruseKill, course{0: uses(31, 5), 5: uses(31, -1), 12: nil}, 13, []string{"0 over notified, 10s", "10 stop a, 10s"}},
		{"memory that is not freed", OveruseKill, course{0: uses(31), 50: nil}, 60, []string{"0 over notified, 10s", "10 stop a, 10s", "20 kill a", "25 kill a", "30 kill a", "35 leak a", "36 kill a", "41 kill a", "46 kill a"}},
		{"one process of a lease in place is stopped", OveruseKill, course{0: usesInPlace(31), 22: usesInPlace(20)}, 60, []string{"0 over notified, 10s", "10 stop a, 10s", "20 kill a", "27 clear"}},
		{"the next process of a lease in place gets SIGTERM before it is killed", OveruseKill, course{0: usesInPlace(31), 45: usesInPlace(20)}, 46, []string{"0 over notified, 10s", "10 stop a, 10s", "20 kill a", "40 stop a, 10s"}},
		{"freeze repeatedly", OveruseFreeze, course{0: uses(31), 40: nil}, 50, []string{"0 over notified, 10s", "10 freeze a until 15", "15 thaw a", "25 freeze a until 30", "30 thaw a", "45 clear"}},
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
				for _, a := range l.Evaluate(time.Duration(s)*time.Second, []MemoryAccount{{ID: "g", Limit: 30 * gibi, Policy: tc.do, Grace: 10 * time.Second, Leases: leases}}) {
					got = append(got, short(s, a))
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
		for _, a := range l.Evaluate(time.Duration(s)*time.Second, list) {
			if a.Kind == MemoryStop || a.Kind == MemoryKill {
				got = append(got, short(s, a))
			}
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
		for _, a := range l.Evaluate(time.Duration(s)*time.Second, []MemoryAccount{{ID: "g", Limit: limit, Policy: OveruseKill, Grace: 10 * time.Second, Leases: uses(21)}}) {
			got = append(got, short(s, a))
		}
	}
	if d := cmp.Diff([]string{"0 over notified, 10s", "8 over notified, 10s", "18 stop a, 10s", "28 kill a"}, got); d != "" {
		t.Error(d)
	}
}

func TestMemoryMessages(t *testing.T) {
	a := MemoryAction{Kind: MemoryOver, Account: "vision/dev", Lease: "l-1", Used: 32*gibi + gibi/5, Limit: 30 * gibi, Delay: 10 * time.Second}
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
		stopped, stoppedAt := "", time.Duration(0)
		frozen := map[string]time.Duration{}
		overSince := map[string]time.Duration{}
		for range rapid.IntRange(5, 80).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(100, 2000).Draw(t, "ms")) * time.Millisecond
			var list []MemoryAccount
			certain := map[string]bool{}
			alive := map[string]bool{}
			for i := range n {
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
			acts := l.Evaluate(now, list)
			for _, a := range acts {
				i := int(a.Account[0] - 'x')
				switch a.Kind {
				case MemoryOver:
					overSince[a.Account] = now
				case MemoryStop, MemoryKill:
					if policy[i] != OveruseKill {
						t.Fatalf("%v under %s", a, policy[i])
					}
					if a.Kind == MemoryStop {
						if !certain[a.Account] || now < overSince[a.Account]+grace[i] {
							t.Fatalf("at %v stops %s: certain %v, over since %v, grace %v", now, a.Lease, certain[a.Account], overSince[a.Account], grace[i])
						}
						if l.victim == nil || l.victim.lease != a.Lease {
							t.Fatalf("stops %s while it stops %+v", a.Lease, l.victim)
						}
						stopped, stoppedAt = a.Lease, now
					} else if a.Lease != stopped || now < stoppedAt+grace[i] {
						t.Fatalf("kills %s at %v, but %s got SIGTERM at %v", a.Lease, now, stopped, stoppedAt)
					}
				case MemoryFreeze:
					if policy[i] != OveruseFreeze || !certain[a.Account] || a.Until != now+5*time.Second {
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
		}
	})
}
