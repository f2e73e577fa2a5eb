package usage

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

// outsideOn is an interval that ends now.
func (c *clock) outsideOn(user string, length time.Duration, busy *Busy) OutsideInterval {
	to := time.Unix(0, 0).Add(c.Boot)
	return OutsideInterval{
		OutsideKey: OutsideKey{User: user, GPU: "GPU-a"},
		From:       to.Add(-length),
		To:         to,
		Held:       true,
		Busy:       busy,
		Memory:     &Memory{Mean: 1 << 30, Peak: 2 << 30},
	}
}

// Whatever is taken when, the records have exactly what was reported, in the hours and days in which it was, and the sums of old days
// have the same.
func TestOutsideAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k, m := newClock(), NewOutsideMeter("a")
		var kept []Record
		want := map[string]int64{}
		since := k.Date
		for range rapid.IntRange(1, 40).Draw(t, "intervals") {
			length := time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second
			user := rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "user")
			k.pass(length)
			i := k.outsideOn(user, length, nil)
			m.Record(&i, k.Moment)
			want[user] += length.Milliseconds()
			if rapid.Bool().Draw(t, "taken") {
				kept = append(kept, m.Take(k.Moment)...)
			}
		}
		kept = append(kept, m.Take(k.Moment)...)
		until := k.Date.Add(time.Hour)
		all := distinct(kept).Records()
		sums := NewOutsideSums(By{User: true, Tenant: true}, since.Truncate(24*time.Hour), until)
		leases := NewSums(By{User: true}, since.Truncate(24*time.Hour), until)
		days := map[string][]Record{}
		for i := range all {
			sums.Add(&all[i])
			leases.Add(&all[i])
			days[all[i].Day()] = append(days[all[i].Day()], all[i])
		}
		old := NewOutsideSums(By{User: true}, since.Truncate(24*time.Hour), until)
		for day, records := range days {
			for _, r := range SumDay(startOf(day), records) {
				old.Add(&r)
			}
		}
		for name, s := range map[string]*Sums{"records": sums, "sums of days": old} {
			rows, _ := s.Rows()
			for i := range rows {
				r := &rows[i]
				if r.Held != want[r.User] || r.Memory != r.Held || r.MemoryKnown != r.Held || r.Peak != 2<<30 || r.Tenant != "" {
					t.Fatalf("the %s have %+v of %s, want %d", name, r.Amounts, r.User, want[r.User])
				}
			}
			if len(rows) != len(want) {
				t.Fatalf("the %s have %d rows of %d users", name, len(rows), len(want))
			}
		}
		if leases.Len() != 0 {
			t.Fatal("use outside of leases counts to leases")
		}
	})
}

// Processes of a user are idle while their kernels do not run, and who was away for a while begins again.
func TestOutsideIdle(t *testing.T) {
	k, m := newClock(), NewOutsideMeter("a")
	key := OutsideKey{User: "alice", GPU: gpu.UUID("GPU-a")}
	run := func(d time.Duration, busy *Busy) {
		for range int(d / (5 * time.Second)) {
			k.pass(5 * time.Second)
			i := k.outsideOn("alice", 5*time.Second, busy)
			m.Record(&i, k.Moment)
		}
	}
	check := func(what string, want time.Duration, known bool) {
		t.Helper()
		idle, measured, ok := m.Idle(key, k.Moment)
		if !ok || (measured && idle.Known) != known || known && (idle.Time < want-Window || idle.Time > want) {
			t.Errorf("%s: idle for %v (known %v, measured %v, there %v), want %v", what, idle.Time, idle.Known, measured, ok, want)
		}
	}
	run(5*time.Second, &Busy{})
	check("before a whole window", 0, false)
	run(2*time.Minute, &Busy{})
	check("idle", 125*time.Second, true)
	run(10*time.Second, &Busy{Time: time.Second})
	check("busy", 0, true)
	run(time.Minute, &Busy{})
	check("idle again", time.Minute, true)
	run(2*time.Minute, nil)
	check("not measured", 0, false)
	run(time.Minute, &Busy{})
	k.pass(time.Hour)
	if _, _, ok := m.Idle(key, k.Moment); ok {
		t.Error("who is away has an idle time")
	}
	run(20*time.Second, &Busy{})
	check("after an hour away", 20*time.Second, true)
}
