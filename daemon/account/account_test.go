package account

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
)

func part(f float64) *float64 { return &f }

// hasRow compares what matters of a row.
func hasRow(t *testing.T, r *api.UsageRow, held, busy, memory time.Duration, started, ended int64) {
	t.Helper()
	got := []int64{int64(r.HeldSeconds), int64(r.BusySeconds), int64(r.GPUMemoryGiBSeconds), r.LeasesStarted, r.LeasesEnded}
	want := []int64{held.Milliseconds(), busy.Milliseconds(), memory.Milliseconds(), started, ended}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("held, busy, GiB·s, started, ended: %d, want %d", got, want)
		}
	}
}

// What was measured is in the answer at once, also what is not on the disk yet, and nothing twice.
func TestUsageIsUpToDate(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.busy = part(0.25)
		for range 3 {
			w.pass(35 * time.Second)
			r := w.total()
			held := time.Duration(r.HeldSeconds) * time.Millisecond
			hasRow(t, &r, held, held/4, held, 1, 0)
		}
		r := w.total()
		hasRow(t, &r, 105*time.Second, 105*time.Second/4, 105*time.Second, 1, 0)
		if err := w.table.Ended(w.Context(), w.id, "the last process ended"); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * time.Hour)
		r = w.total()
		hasRow(t, &r, 105*time.Second, 105*time.Second/4, 105*time.Second, 1, 1)
		list := w.endedLeases()
		if len(list) != 1 || list[0].ID != w.id || *list[0].ElapsedSeconds != 105_000 || *list[0].GPUMemory.Peak != 3<<30 ||
			list[0].Reason != "the last process ended" ||
			list[0].State != api.LeaseEnded {
			t.Errorf("ended leases: %+v", list)
		}
	})
}

func TestRestarts(t *testing.T) {
	const dead = 10 * time.Minute
	for _, c := range []struct {
		name   string
		during func(w *fixture, saved []byte) []byte // while the daemon is dead
		held   time.Duration                         // at the end, 120 s after the restart
		busy   time.Duration
		ends   string // why the lease ended; empty: it runs
	}{
		{"the lease goes on", func(_ *fixture, saved []byte) []byte { return saved }, 200*time.Second + dead, 195 * time.Second / 2, ""},
		{"the lease ended", func(*fixture, []byte) []byte { return nil }, 75 * time.Second, 75 * time.Second / 2, "it ended while the daemon was not running"},
		{"the node was started again", func(w *fixture, _ []byte) []byte { w.boot = "boot-2"; return nil }, 75 * time.Second, 75 * time.Second / 2, "the node was started again"},
		{"the system clock was set", func(w *fixture, saved []byte) []byte { w.jump = 9 * 24 * time.Hour; return saved }, 200*time.Second + dead, 195 * time.Second / 2, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				w.busy = part(0.5)
				w.pass(75 * time.Second) // The regular writings are after 50 s and 100 s.
				if err := w.write(w.Context(), usage.AllLeases); err != nil {
					t.Fatal(err)
				}
				w.pass(5 * time.Second)
				saved := w.kill()
				elapse(dead)
				w.start(c.during(w, saved))
				w.pass(120 * time.Second)
				u, e := w.get("root", "since=20d")
				if e != nil {
					t.Fatal(e)
				}
				var ended int64
				if c.ends != "" {
					ended = 1
				}
				held := c.held
				if c.ends == "" {
					held += w.dead
				}
				hasRow(t, &u.Total, held, c.busy, 2*c.busy, 1, ended)
				list := w.endedLeases()
				if c.ends == "" && len(list) > 0 ||
					c.ends != "" && (len(list) != 1 || list[0].Reason != c.ends || *list[0].ElapsedSeconds != 75_000) {
					t.Errorf("ended leases: %+v", list)
				}
				// A third run finds everything closed, or goes on.
				w.stop()
				w.start(c.during(w, saved))
				if again, e := w.get("root", "since=20d"); e != nil || again.Total.LeasesEnded != ended || again.Total.LeasesStarted != 1 {
					t.Errorf("after another restart: %+v, %v", again, e)
				}
			})
		})
	}
}

// The lease table reports the end of a lease that ended while the daemon was not running when it restores it: that is the end
// that counts, with the result of its command.
func TestEndThatTheTableFinds(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.pass(55 * time.Second)
		l := w.table.Live()[0]
		w.kill()
		elapse(time.Hour)
		three := 3
		w.Account = New(&Account{
			Reporter: w.Reporter,
			State:    w.State,
			Dir:      w.dir,
			BootID:   w.boot,
			Boot:     w.Boot,
			Table:    lease.New(w.config()),
			Leases:   w,
			Held:     w.Held,
		})
		w.Load()
		l.State, l.Reason = lease.Ended, "its processes exited while the daemon did not run"
		w.Changed(&l, "exited with 3", &three)
		w.Recover()
		list := w.endedLeases()
		if len(list) != 1 || list[0].Reason != l.Reason || *list[0].ExitCode != 3 || *list[0].ElapsedSeconds > 55_000 ||
			*list[0].ElapsedSeconds == 0 {
			t.Errorf("ended leases: %+v", list)
		}
		if r := w.total(); r.ExitCodes["3"] != 1 || len(r.ExitCodes) != 1 {
			t.Errorf("exit codes %v", r.ExitCodes)
		}
		w.ended = make(chan struct{})
		close(w.ended)
	})
}

// A lease whose end was not written before the daemon was killed is in the list of package leases: its reason and its result
// are known.
func TestEndBeforeAKill(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.pass(75 * time.Second)
		e := w.table.Live()[0].Wire()
		code, at := 3, w.Now()
		e.Ended, e.Reason, e.Result, e.ExitCode = &at, "its last process ended", "exited with 3", &code
		w.known = []api.Lease{e}
		w.kill()
		elapse(time.Hour)
		w.start(nil)
		list := w.endedLeases()
		if len(list) != 1 || list[0].Reason != e.Reason || *list[0].ExitCode != 3 || *list[0].ElapsedSeconds != 75_000 ||
			!list[0].Ended.Equal(at) {
			t.Errorf("ended leases: %+v", list)
		}
		if r := w.total(); r.ExitCodes["3"] != 1 || len(r.ExitCodes) != 1 || r.HeldSeconds < 50_000 || r.HeldSeconds > 51_000 {
			t.Errorf("%+v", r)
		}
	})
}

// A disk that does not take the account delays it, and what does not fit in memory is counted. Leases are not affected.
func TestDiskThatDoesNotWrite(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.busy = part(0.5)
		w.pass(10 * time.Second)
		if err := os.Rename(w.dir, w.dir+".away"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.pass(3 * time.Hour)
		if c := w.Conditions.List(); len(c) != 1 || c[0].Kind != "account" || !strings.Contains(c[0].Message, "cannot be written") {
			t.Errorf("conditions %+v", c)
		}
		w.mu.Lock()
		for i := range mostPending + 5 {
			w.addLocked(&usage.Record{Kind: "of a later version", At: w.Now().UnixMilli(), Run: "another", Part: int64(i)})
		}
		waiting := int64(len(w.pending.Records()))
		w.mu.Unlock()
		if waiting != mostPending {
			t.Fatalf("%d records wait", waiting)
		}
		if err := os.Remove(w.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(w.dir+".away", w.dir); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute)
		if c := w.Conditions.List(); len(c) != 0 {
			t.Errorf("conditions %+v", c)
		}
		for range 2 {
			u, e := w.get("root", "")
			if e != nil || u.LostRecords < 5 || u.LostRecords > 10 {
				t.Fatalf("%v: %+v", e, u)
			}
			r := w.total()
			hasRow(t, &r, 3*time.Hour+70*time.Second+w.dead, (3*time.Hour+70*time.Second)/2, 3*time.Hour+70*time.Second, 1, 0)
			if err := w.write(w.Context(), usage.AllLeases); err != nil {
				t.Fatal(err)
			}
			saved := w.kill()
			w.start(saved) // The number of lost records survives.
		}
	})
}

func TestWhoSeesWhat(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.pass(5 * time.Second)
		for who, rows := range map[string]int{"root": 1, "observer": 1, "member": 1, "member by group": 1, "another's member": 0} {
			u, e := w.get(who, "by=tenant,user,gpu,lease")
			if e != nil {
				t.Fatal(who, e)
			}
			if len(u.Rows) != rows || (u.Total.HeldSeconds > 0) != (rows > 0) {
				t.Errorf("%s sees %+v", who, u)
			}
		}
		if _, e := w.get("without a role", ""); e == nil || e.Kind != api.KindDenied {
			t.Errorf("without a role: %v", e)
		}
	})
}

// The steps have what the rows have, also what is not on the disk yet, and only the tenants of the caller.
func TestUsageInSteps(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.busy = part(0.5)
		w.pass(time.Hour + 10*time.Second)
		for who, rows := range map[string]int{"root": 2, "member": 2, "another's member": 0} {
			u, e := w.get(who, "by=tenant&since=5h&step=1h")
			if e != nil {
				t.Fatal(who, e)
			}
			if u.StepSeconds != 3600 || len(u.Steps) != 6 || !u.Steps[0].Since.Equal(u.Since) {
				t.Fatalf("%s: %d steps of %d s since %s", who, len(u.Steps), u.StepSeconds, u.Since)
			}
			n, held, busy, gib := 0, api.Thousandths(0), api.Thousandths(0), api.Thousandths(0)
			for _, s := range u.Steps {
				for _, r := range s.Rows {
					n, held, busy, gib = n+1, held+r.HeldSeconds, busy+r.BusySeconds, gib+r.GPUMemoryGiBSeconds
					if r.HeldSeconds > 3_600_000 || r.Tenant != "vision" {
						t.Errorf("%s: %+v", who, r)
					}
				}
			}
			if n != rows || held != u.Total.HeldSeconds || busy != u.Total.BusySeconds || gib != u.Total.GPUMemoryGiBSeconds {
				t.Errorf("%s: %d rows with %s s held, %s s busy, %s GiB·s; the total is %+v", who, n, held, busy, gib, u.Total)
			}
		}
		u, e := w.get("root", "")
		if e != nil || u.Steps != nil || u.StepSeconds != 0 {
			t.Errorf("steps that were not requested: %+v, %v", u, e)
		}
	})
}

func TestBadQueries(t *testing.T) {
	inBubble(t, func(w *fixture) {
		for _, c := range []struct{ query, says string }{
			{"since=30s", "out of range: write 1m to 435d"},
			{"since=436d", "out of range: write 1m to 435d"},
			{"since=99999999999999999999d", "out of range"},
			{"since=4294967295d", "out of range"},
			{"since=-1h", "no age and no date"},
			{"since=yesterday", "no age and no date: write 1m to 435d, as in 36h or 7d, or a date"},
			{"since=2000-01-02T00:00:00Z", "out of range"},
			{"since=1990-01-01", "out of range"},
			{"since=1h&until=2h", "ends before it begins"},
			{"until=0s", "out of range"},
			{"by=tenants", `by "tenants": the keys are tenant, user, gpu, lease`},
			{"by=user,user", `by "user" twice`},
			{"by=user,", `by ""`},
			{"step=1", "has no unit"},
			{"step=hour", "is no duration"},
			{"step=30m", "the account has whole hours"},
			{"step=90m", "the account has whole hours"},
			{"step=0s", "the account has whole hours"},
			{"step=-1h", "is negative"},
			{"step=1h&since=43d", "cannot show more than 1000 steps"},
			{"step=1h&since=435d", "cannot show more than 1000 steps"},
		} {
			if _, e := w.get("root", c.query); e == nil || e.Kind != api.KindInvalid || !strings.Contains(e.Message, c.says) {
				t.Errorf("%s: %v", c.query, e)
			}
		}
		for _, good := range []string{"", "since=1m", "since=435d", "since=36h&until=1h", "since=1999-12-31", "since=1999-12-31T12:00:00%2B02:00&by=lease", "step=1h", "step=1d&since=435d", "step=1h&since=41d", "step=36h"} {
			if _, e := w.get("root", good); e != nil {
				t.Errorf("%s: %v", good, e)
			}
		}
	})
}

func TestTrust(t *testing.T) {
	day := 24 * time.Hour
	at := func(days int, up time.Duration) usage.Moment {
		return usage.Moment{Date: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, days), Boot: up}
	}
	x := trust{date: at(0, 0).Date}
	for i, c := range []struct {
		now  usage.Moment
		want bool
	}{
		{at(29, 0), true},
		{at(58, time.Hour), true},
		{at(100, 2*time.Hour), false},
		{at(58, 3*time.Hour), true},
		{at(100, 4*time.Hour), false},
		{at(100, 3*time.Hour+day), false},
		{at(101, 5*time.Hour+day), true},
		{at(-5000, 6*time.Hour+day), true},
		{at(102, 7*time.Hour+day), true},
	} {
		if got := x.believes(c.now); got != c.want {
			t.Errorf("%d: believes %v: %v", i, c.now, got)
		}
	}
	if !new(trust).believes(at(0, 0)) {
		t.Error("an account without files does not believe the clock")
	}
}

// A user whose leases are many while the disk does not write loses their own records, and those of others wait.
func TestManyRecordsOfOneUserWhileTheDiskDoesNotWrite(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.mu.Lock()
		defer w.mu.Unlock()
		add := func(user string, n int) {
			for i := range n {
				w.addLocked(&usage.Record{Kind: usage.KindEnd, At: w.Now().UnixMilli(), User: user, Lease: user, Generation: uint64(i + 1)})
			}
		}
		before := len(w.pending.Records())
		add("mallory", 2*mostPending)
		lost := w.lost
		add("alice", 100)
		if lost == 0 || w.lost != lost {
			t.Errorf("%d lost of mallory, %d of alice", lost, w.lost-lost)
		}
		if n := len(w.pending.Records()); n > before+mostPending+100 {
			t.Errorf("%d records wait", n)
		}
		w.pending, w.pendingOf, w.lost = usage.Distinct{}, nil, 0
	})
}
