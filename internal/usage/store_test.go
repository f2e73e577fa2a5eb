package usage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

func store(t rapid.TB, dir string, l Limits) *Store {
	s, err := OpenStore(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// total reads everything that is on the disk.
func total(t rapid.TB, s *Store, by By) ([]Row, Amounts, int64) {
	sums := NewSums(by, time.Unix(0, 0), time.Unix(1<<36, 0))
	if _, err := s.Each(time.Unix(0, 0), time.Unix(1<<36, 0), nil, func(r *Record) error { sums.Add(r); return nil }); err != nil {
		t.Fatal(err)
	}
	rows, all := sums.Rows()
	return rows, all, sums.Lost()
}

// life is what a lease really had.
type life struct {
	Lease
	live  bool
	held  time.Duration
	busy  time.Duration
	kills int
}

// The daemon is killed at any time, also in the middle of a write, and the power fails; leases go on, and end, while it is
// dead. The account never has more than the truth, never a minute less for each kill, and nothing twice.
func TestTheAccountAddsUpAfterAnyCrash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "usage")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		c := newClock()
		c.Date = c.Date.Add(time.Duration(rapid.IntRange(0, 12*3600).Draw(t, "begin")) * time.Second)
		var lives []*life
		boot, runs := 1, 0
		var s *Store
		var m *Meter
		var pending Distinct
		folds := rapid.Bool().Draw(t, "folds") // every lease as soon as it may be
		start := func() {
			s = store(t, dir, Limits{})
			if folds {
				s.foldAbove, s.userBytes, s.Live = 1, 1, func() func(string, uint64) bool { return m.Live() }
			}
			recent, err := s.Recent()
			if err != nil {
				t.Fatal(err)
			}
			runs++
			m, pending = NewMeter(fmt.Sprint(runs)), Distinct{}
			var live []Lease
			for _, l := range lives {
				if l.live {
					live = append(live, l.Lease)
				}
			}
			same := LastBoot(recent) == fmt.Sprint(boot)
			pending.Add(&Record{Kind: KindRun, At: c.Date.UnixMilli(), Run: fmt.Sprint(runs), BootID: fmt.Sprint(boot)})
			for _, r := range m.Recover(FindUnfinished(recent), live, same, "it ended while the daemon was not running", c.Moment) {
				pending.Add(&r)
			}
		}
		write := func() {
			for _, r := range m.Take(c.Moment, AllLeases) {
				pending.Add(&r)
			}
			if err := s.Write(pending.Records()); err != nil {
				t.Fatal(err)
			}
			pending = Distinct{}
		}
		newLease := func() {
			l := &life{Lease: train(c), live: true}
			l.ID, l.Generation, l.GPUs = fmt.Sprintf("lease-%d", len(lives)), uint64(len(lives)%3+1), []gpu.UUID{
				gpu.UUID(fmt.Sprintf("GPU-%d", len(lives))),
			}
			l.Created = l.Created.Add(time.Duration(len(lives)) * time.Millisecond)
			lives = append(lives, l)
			m.Start(l.Lease, c.Moment)
			write() // A start is written at once.
		}
		end := func(l *life) {
			l.live = false
			if m != nil {
				m.End(l.ID, l.Generation, "the last process ended", "", nil, c.Moment)
				write()
			}
		}
		second := func(running bool) {
			c.pass(time.Second)
			for i, l := range lives {
				if !l.live {
					continue
				}
				busy := time.Duration(i+1) * 100 * time.Millisecond % time.Second
				l.held, l.busy = l.held+time.Second, l.busy+busy
				if running {
					x := c.interval(&l.Lease, l.GPUs[0], time.Second)
					x.Busy = &Busy{Time: busy}
					m.Record(&x, c.Moment)
				}
			}
		}
		start()
		write()
		unmeasured := make([]time.Duration, 100) // of busy time, by lease, while the daemon was dead
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			for i := range rapid.IntRange(0, 200).Draw(t, "seconds") {
				second(true)
				if i%50 == 49 {
					write()
					if rapid.IntRange(0, 3).Draw(t, "keep") == 0 {
						s.added[c.Date.UTC().Format(time.DateOnly)] = rewriteAfter
						if err := s.Keep(c.Date, true); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			live := slices.DeleteFunc(slices.Clone(lives), func(l *life) bool { return !l.live })
			switch e := rapid.SampledFrom([]string{"start", "start", "end", "kill", "kill in a write", "power"}).Draw(t, "event"); {
			case e == "start" && len(lives) < 20:
				newLease()
			case e == "end" && len(live) > 0:
				end(live[rapid.IntRange(0, len(live)-1).Draw(t, "which")])
			case e == "kill" || e == "kill in a write" || e == "power":
				// What was not written for up to 50 s is lost, and of the last write only a part arrived.
				if e == "kill in a write" {
					partOfAWrite(t, m, s, c)
				}
				m = nil
				for _, l := range live {
					l.kills++
					if e == "power" {
						l.live = false
					}
				}
				if e == "power" {
					boot++
					c.pass(time.Minute)
					c.Boot = 10 * time.Second
				}
				for range rapid.IntRange(0, 100).Draw(t, "dead") {
					second(false)
					for i, l := range lives {
						if l.live {
							unmeasured[i] += time.Duration(i+1) * 100 * time.Millisecond % time.Second
							if rapid.IntRange(0, 200).Draw(t, "ends") == 0 {
								end(l)
							}
						}
					}
				}
				start()
				write()
			}
		}
		for _, l := range lives {
			if l.live {
				end(l)
			}
		}
		rows, all, _ := total(t, s, By{Lease: true})
		if all.Starts != int64(len(lives)) || all.Ends != all.Starts || all.Exits[UnknownExit] != all.Ends && all.Ends > 0 {
			t.Fatalf("%d leases: %+v", len(lives), all)
		}
		if folds {
			s.crowded = map[string]crowded{}
			checkFolded(t, lives, &all, unmeasured)
			return
		}
		for i, l := range lives {
			at := slices.IndexFunc(rows, func(r Row) bool { return r.Lease == l.ID })
			if at < 0 {
				t.Fatalf("%s has no row", l.ID)
			}
			r, kills := rows[at], int64(l.kills)
			if r.Held > l.held.Milliseconds() || r.Held < (l.held-unmeasuredTime(l, unmeasured[i], i)).Milliseconds()-kills*60_000 {
				t.Fatalf("%s: held %d ms of %v, %d kills", l.ID, r.Held, l.held, kills)
			}
			if r.Busy > l.busy.Milliseconds() || r.Busy < (l.busy-unmeasured[i]).Milliseconds()-kills*60_000 || r.BusyKnown > r.Held {
				t.Fatalf("%s: busy %d ms of %v, of which %v were not measured, %d kills", l.ID, r.Busy, l.busy, unmeasured[i], kills)
			}
		}
	})
}

// checkFolded compares what all leases have together: what was folded has no lease.
func checkFolded(t *rapid.T, lives []*life, all *Amounts, unmeasured []time.Duration) {
	var held, busy, missing, missingBusy time.Duration
	kills := int64(0)
	for i, l := range lives {
		held, busy, kills = held+l.held, busy+l.busy, kills+int64(l.kills)
		missing, missingBusy = missing+unmeasuredTime(l, unmeasured[i], i), missingBusy+unmeasured[i]
	}
	if all.Held > held.Milliseconds() || all.Held < (held-missing).Milliseconds()-kills*60_000 {
		t.Fatalf("held %d ms of %v, %d kills", all.Held, held, kills)
	}
	if all.Busy > busy.Milliseconds() || all.Busy < (busy-missingBusy).Milliseconds()-kills*60_000 || all.BusyKnown > all.Held {
		t.Fatalf("busy %d ms of %v, of which %v were not measured, %d kills", all.Busy, busy, missingBusy, kills)
	}
}

// unmeasuredTime is how long a lease ran while the daemon was dead.
func unmeasuredTime(_ *life, busy time.Duration, i int) time.Duration {
	each := time.Duration(i+1) * 100 * time.Millisecond % time.Second
	if each == 0 {
		return time.Hour
	}
	return time.Duration(int64(busy/each)) * time.Second
}

// partOfAWrite writes what is due and cuts the file somewhere in it.
func partOfAWrite(t *rapid.T, m *Meter, s *Store, c *clock) {
	path := filepath.Join(s.dir, "usage-"+c.Date.UTC().Format(time.DateOnly)+".log")
	before, _ := os.Stat(path)
	if _, err := s.write(m.Take(c.Moment, AllLeases)); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil {
		return // there was nothing to write
	}
	from := 0
	if before != nil {
		from = int(before.Size())
	}
	if err := os.Truncate(path, int64(rapid.IntRange(from, int(after.Size())).Draw(t, "cut"))); err != nil {
		t.Fatal(err)
	}
}

func TestOldDaysAreSummedUpThenDropped(t *testing.T) {
	for _, c := range []struct {
		name        string
		limits      Limits
		trusted     bool
		days        int
		lines, sums int // files afterwards
	}{
		{"young", Limits{}, true, 30, 30, 0},
		{"older than 35 days", Limits{}, true, 50, 36, 14},
		{"older than the sums", Limits{Lines: 5, Sums: 15}, true, 25, 6, 10},
		{"the clock may be wrong", Limits{Lines: 5, Sums: 15}, false, 25, 25, 0},
		{"the newest day stays", Limits{Bytes: 1}, true, 30, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := store(t, t.TempDir(), c.limits)
			k := newClock()
			for day := range c.days {
				at := noon.AddDate(0, 0, -day)
				k.Date = at
				m, l := NewMeter(fmt.Sprint(day)), train(k)
				l.ID, l.Exclusive = fmt.Sprintf("lease-%03d", day), true
				m.Start(l, k.Moment)
				k.pass(time.Hour / 2)
				m.End(l.ID, l.Generation, "", "", nil, k.Moment)
				if err := s.Write(m.Take(k.Moment, AllLeases)); err != nil {
					t.Fatal(err)
				}
			}
			_, before, _ := total(t, s, By{})
			for range 2 { // A second time changes nothing.
				if err := s.Keep(noon, c.trusted); err != nil {
					t.Fatal(err)
				}
				lines, err := s.lines.List()
				if err != nil {
					t.Fatal(err)
				}
				sums, err := s.sums.List()
				if err != nil {
					t.Fatal(err)
				}
				if len(lines) != c.lines || len(sums) != c.sums {
					t.Errorf("%d days of records and %d of sums, want %d and %d", len(lines), len(sums), c.lines, c.sums)
				}
			}
			_, after, _ := total(t, s, By{})
			kept := int64(c.lines + c.sums)
			if after.Held != kept*1_800_000 || after.Starts != kept || after.Ends != kept || after.Occupancy != after.Held {
				t.Errorf("%+v of %d days", after, kept)
			}
			if kept == int64(c.days) {
				if diff := cmp.Diff(before, after); diff != "" {
					t.Errorf("the sums differ from the records: %s", diff)
				}
			}
		})
	}
}

// A day whose records and sums are both there was being summed up: its records count, and it is summed up again.
func TestAnInterruptedSum(t *testing.T) {
	s := store(t, t.TempDir(), Limits{})
	k := newClock()
	m, l := NewMeter("a"), train(k)
	l.Exclusive = true
	m.Start(l, k.Moment)
	k.pass(time.Minute)
	records := m.Take(k.Moment, AllLeases)
	if err := s.Write(records); err != nil {
		t.Fatal(err)
	}
	_, before, _ := total(t, s, By{})
	if err := s.sumUp("2026-02-01"); err != nil {
		t.Fatal(err)
	}
	_, sums, _ := total(t, s, By{})
	file := filepath.Join(s.dir, "usage-2026-02-01.log")
	if err := os.WriteFile(file, lines(t, records), 0o600); err != nil { // as if Remove had not come
		t.Fatal(err)
	}
	_, both, _ := total(t, s, By{})
	if err := s.Keep(noon.AddDate(0, 0, 40), true); err != nil {
		t.Fatal(err)
	}
	_, again, _ := total(t, s, By{})
	for name, got := range map[string]Amounts{"sums": sums, "both": both, "again": again} {
		if diff := cmp.Diff(before, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// A clock that is set back writes to no day that has only sums.
	if err := s.Write(records); err != nil {
		t.Fatal(err)
	}
	if days, _ := s.lines.List(); !slices.Equal(days, []string{"2026-02-02"}) {
		t.Errorf("wrote to %v", days)
	}
}

func lines(t *testing.T, records []Record) []byte {
	d := store(t, t.TempDir(), Limits{})
	if err := d.Write(records); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(d.dir, "usage-2026-02-01.log"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Lines that cannot be read are counted, and still are after the file was rewritten.
func TestDamagedLinesAreCounted(t *testing.T) {
	s := store(t, t.TempDir(), Limits{})
	k := newClock()
	m, l := NewMeter("a"), train(k)
	m.Start(l, k.Moment)
	if err := s.Write(m.Take(k.Moment, AllLeases)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, "usage-2026-02-01.log")
	for want := int64(1); want <= 2; want++ {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("half a line\n"); err != nil {
			t.Fatal(err)
		}
		f.Close()
		for range 2 {
			if _, _, lost := total(t, s, By{}); lost != want {
				t.Errorf("%d records were lost, want %d", lost, want)
			}
			if err := s.rewrite("2026-02-01"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.sumUp("2026-02-01"); err != nil {
		t.Fatal(err)
	}
	if _, all, lost := total(t, s, By{}); lost != 2 || all.Starts != 1 {
		t.Errorf("%d records were lost, want 2: %+v", lost, all)
	}
}

// A file is rewritten when most of its lines no longer count, and the file of a day has a limit.
func TestFilesAreBounded(t *testing.T) {
	s := store(t, t.TempDir(), Limits{})
	k := newClock()
	m := NewMeter("a")
	for i := range 64 {
		l := train(k)
		l.ID, l.Generation = fmt.Sprintf("lease-%d", i), uint64(i)
		m.Start(l, k.Moment)
	}
	for range 300 {
		k.pass(50 * time.Second)
		if err := s.Write(m.Take(k.Moment, AllLeases)); err != nil {
			t.Fatal(err)
		}
		if err := s.Keep(k.Date, true); err != nil {
			t.Fatal(err)
		}
	}
	n, err := s.lines.Size("2026-02-01")
	if err != nil || n > 4<<20 {
		t.Errorf("the file has %d bytes: %v", n, err)
	}
	_, all, _ := total(t, s, By{})
	if want := int64(64 * 300 * 50_000); all.Held != want {
		t.Errorf("held %d ms, want %d", all.Held, want)
	}
}

// TestAFloodOfShortLeases: a user who starts thousands of short leases keeps the newest of them, and what all used; other users
// keep everything, whatever their day has.
func TestAFloodOfShortLeases(t *testing.T) {
	s := store(t, t.TempDir(), Limits{})
	s.foldAbove, s.userBytes, s.dayBytes = 64<<10, 32<<10, 256<<10
	k := newClock()
	m := NewMeter("a")
	s.Live = m.Live
	start := func(user string, n int) Lease {
		l := train(k)
		l.ID, l.Generation, l.User, l.Tenant = fmt.Sprintf("%s-%d", user, n), uint64(n), user, "of-"+user
		l.Created = k.Date
		l.Facts.Command = []string{strings.Repeat("x", 190)}
		m.Start(l, k.Moment)
		return l
	}
	write := func() {
		t.Helper()
		if err := s.Write(m.Take(k.Moment, StartsAndEnds)); err != nil {
			t.Fatal(err)
		}
	}
	const calm, flood = 20, 1500
	for i := range calm {
		start("alice", i)
		k.pass(10 * time.Second)
		m.End(fmt.Sprintf("alice-%d", i), uint64(i), "", "", nil, k.Moment)
		write()
	}
	long := start("mallory", 1<<20)
	for i := range flood {
		l := start("mallory", i)
		k.pass(200 * time.Millisecond)
		m.End(l.ID, l.Generation, "", "exit code 0", new(0), k.Moment)
		if i%10 == 0 {
			write()
		}
		if n, err := s.lines.Size(k.Date.UTC().Format(time.DateOnly)); err != nil || n > 512<<10 {
			t.Fatalf("after %d leases the file has %d bytes: %v", i, n, err)
		}
	}
	k.pass(10 * time.Second)
	m.End(long.ID, long.Generation, "", "", nil, k.Moment)
	write()

	again := store(t, s.dir, Limits{}) // As after a restart.
	rows, _, lost := total(t, again, By{User: true})
	if len(rows) != 2 || rows[0].Starts != calm || rows[0].Ends != calm || rows[0].Held != calm*10_000 || lost != 0 {
		t.Errorf("%+v, %d lost", rows, lost)
	}
	if r := rows[1]; r.Starts != flood+1 || r.Ends != flood+1 || r.Exits["0"] != flood || r.Held < flood*200 {
		t.Errorf("of the flood: %+v", r)
	}
	rows, _, _ = total(t, again, By{User: true, Lease: true})
	calmRows, newest := 0, false
	for _, r := range rows {
		if r.User == "alice" {
			calmRows++
		}
		newest = newest || r.Lease == fmt.Sprintf("mallory-%d", flood-1)
	}
	if calmRows != calm || !newest {
		t.Errorf("%d leases of alice, the newest of mallory: %v", calmRows, newest)
	}
	recent, err := again.Recent()
	if err != nil {
		t.Fatal(err)
	}
	if u := FindUnfinished(recent); len(u) > 0 {
		t.Errorf("unfinished after a restart: %+v", u[0].Last)
	}
}

// TestADayThatIsFull: a file that cannot be made small enough takes the records of users who have less than their part, and
// counts those of the others.
func TestADayThatIsFull(t *testing.T) {
	dir := t.TempDir()
	s := store(t, dir, Limits{})
	k := newClock()
	m := NewMeter("a")
	for i := range 400 {
		l := train(k)
		l.ID, l.Generation, l.User = fmt.Sprintf("long-%d", i), uint64(i), "mallory"
		m.Start(l, k.Moment)
	}
	if err := s.Write(m.Take(k.Moment, AllLeases)); err != nil {
		t.Fatal(err)
	}
	s = store(t, dir, Limits{})
	s.foldAbove, s.dayBytes, s.Live = 32<<10, 64<<10, m.Live
	l := train(k)
	l.ID, l.Generation, l.User = "small", 1<<20, "alice"
	m.Start(l, k.Moment)
	k.pass(time.Minute)
	if err := s.Write(m.Take(k.Moment, AllLeases)); err != nil {
		t.Fatal(err)
	}
	rows, _, lost := total(t, s, By{User: true})
	if len(rows) != 2 || rows[0].User != "alice" || rows[0].Held != 60_000 || rows[0].Starts != 1 || lost != 400 {
		t.Errorf("%+v, %d lost", rows, lost)
	}
}

func TestSums(t *testing.T) {
	use := func(hours int, tenant, user string, id gpu.UUID, lease string, busy int64) Record {
		return Record{
			Kind:    KindUse,
			At:      noon.Add(time.Duration(hours) * time.Hour).UnixMilli(),
			Tenant:  tenant,
			User:    user,
			GPU:     id,
			Lease:   lease,
			Amounts: Amounts{Busy: busy, BusyVariance: 4},
		}
	}
	records := []Record{
		use(0, "vision", "alice", "GPU-b", "v-1", 1),
		use(0, "vision", "bob", "GPU-a", "v-2", 2),
		use(1, "audio", "carol", "GPU-a", "a-1", 4),
		use(2, "vision", "alice", "GPU-a", "v-1", 8),
		use(-5, "vision", "alice", "GPU-a", "v-0", 16),
		{Kind: KindLost, At: noon.UnixMilli(), Lost: 3},
		{Kind: KindRun, At: noon.UnixMilli()},
	}
	for _, c := range []struct {
		name         string
		by           By
		since, until time.Duration
		want         string
	}{
		{"tenants", By{Tenant: true}, -24 * time.Hour, 24 * time.Hour, "audio///:4 vision///:27 total:31±20"},
		{"users and GPUs", By{User: true, GPU: true}, -24 * time.Hour, 24 * time.Hour, "/alice/GPU-a/:24 /alice/GPU-b/:1 /bob/GPU-a/:2 /carol/GPU-a/:4 total:31±20"},
		{"nothing", By{}, -24 * time.Hour, 24 * time.Hour, "///:31 total:31±20"},
		{"everything", By{Tenant: true, User: true, GPU: true, Lease: true}, 0, 24 * time.Hour, "audio/carol/GPU-a/a-1:4 vision/alice/GPU-a/v-1:8 vision/alice/GPU-b/v-1:1 vision/bob/GPU-a/v-2:2 total:15±16"},
		{"whole hours", By{Lease: true}, 90 * time.Minute, 24 * time.Hour, "///a-1:4 ///v-1:8 total:12±8"},
		{"until", By{Lease: true}, 0, time.Hour, "///v-1:1 ///v-2:2 total:3±8"},
		{"none", By{Lease: true}, 30 * time.Hour, 40 * time.Hour, "total:0±0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSums(c.by, noon.Add(c.since), noon.Add(c.until))
			for i := range records {
				s.Add(&records[i])
			}
			rows, all := s.Rows()
			var got string
			for _, r := range rows {
				got += fmt.Sprintf("%s/%s/%s/%s:%d ", r.Tenant, r.User, r.GPU, r.Lease, r.Busy)
			}
			if got += fmt.Sprintf("total:%d±%d", all.Busy, all.BusyVariance); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// Seven days of 64 leases, as they are on the disk when the files were rewritten and when they could not be.
func BenchmarkQuery(b *testing.B) {
	for name, every := range map[string]time.Duration{"rewritten": time.Hour, "every-minute": time.Minute} {
		b.Run(name, func(b *testing.B) {
			s := store(b, b.TempDir(), Limits{})
			k := newClock()
			k.Date = k.Date.Truncate(24 * time.Hour)
			m := NewMeter("0123abcd")
			for i := range 64 {
				l := train(k)
				l.ID, l.Generation, l.Exclusive, l.GPUs = fmt.Sprintf("vision-train-%04d", i), uint64(i), true, []gpu.UUID{
					gpu.UUID(fmt.Sprintf("GPU-5f0c1a2b-0000-0000-0000-%012d", i%8)),
				}
				m.Start(l, k.Moment)
			}
			n := 0
			for range int(7 * 24 * time.Hour / every) {
				k.pass(every)
				records := m.Take(k.Moment, AllLeases)
				n += len(records)
				if err := s.Write(records); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, all, _ := total(b, s, By{Tenant: true, User: true, GPU: true, Lease: true}); all.Held == 0 {
					b.Fatal("nothing was read")
				}
			}
			b.ReportMetric(float64(n), "lines")
		})
	}
}

// twoDays are the records of a lease of one day and of one of the next.
func twoDays(k *clock) []Record {
	m := NewMeter("a")
	for i := range 2 {
		l := train(k)
		l.ID, l.Generation, l.User, l.Created = fmt.Sprintf("lease-%d", i), uint64(i), "alice", k.Date
		m.Start(l, k.Moment)
		k.pass(10 * time.Second)
		m.End(l.ID, l.Generation, "", "", nil, k.Moment)
		k.pass(dayLength)
	}
	return m.Take(k.Moment, AllLeases)
}

// block makes a file of the account one that cannot be written, and returns how that ends.
func block(t *testing.T, path string) (end func()) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(path, "blocks"), 0o700); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A file that cannot be folded is no failed write: records that were folded and are written again would count twice. It is folded
// later.
func TestAFailedFoldIsNoFailedWrite(t *testing.T) {
	k := newClock()
	records := twoDays(k)
	last := records[len(records)-1].Day()
	s := store(t, t.TempDir(), Limits{})
	s.foldAbove, s.userBytes = 1, 1
	end := block(t, filepath.Join(s.dir, "usage-"+last+".log")+".new")
	if err := s.Write(records); err != nil {
		t.Error(err)
		if err := s.Write(records); err == nil { // As the account does after an error.
			t.Error("the second attempt folds it")
		}
	}
	if err := s.Unfolded(); err == nil || !strings.Contains(err.Error(), "cannot fold the account of "+last) {
		t.Errorf("it is not said: %v", err)
	}
	check := func() {
		t.Helper()
		rows, _, lost := total(t, s, By{User: true})
		if len(rows) != 1 || rows[0].Starts != 2 || rows[0].Ends != 2 || rows[0].Held != 20_000 || lost != 0 {
			t.Errorf("%+v, %d lost", rows, lost)
		}
	}
	check()
	end()
	if err := errors.Join(s.Write(nil), s.Unfolded()); err != nil {
		t.Error(err)
	}
	check()
	if rows, _, _ := total(t, s, By{Lease: true}); rows[0].Starts != 2 {
		t.Errorf("it is not folded: %+v", rows)
	}
}

// What a failed attempt has appended is not folded before it is appended again.
func TestAFailedWriteIsNotFolded(t *testing.T) {
	k := newClock()
	records := twoDays(k)
	last := records[len(records)-1].Day()
	s := store(t, t.TempDir(), Limits{})
	end := block(t, filepath.Join(s.dir, "usage-"+last+".log"))
	if err := s.Write(records); err == nil {
		t.Fatal("a day that cannot be written is written")
	}
	end()
	size, err := s.lines.Size(records[0].Day())
	if err != nil || size == 0 {
		t.Fatalf("the first day has %d bytes: %v", size, err)
	}
	s.foldAbove, s.dayBytes = 1, size // The file is too large now.
	if err := s.Write(records); err != nil {
		t.Fatal(err)
	}
	rows, _, _ := total(t, s, By{User: true})
	if len(rows) != 1 || rows[0].Starts != 2 || rows[0].Ends != 2 {
		t.Errorf("%+v", rows)
	}
}

// What an engine says of its leases is kept: the account also when a day is summed up, unless one user has more of them than are kept apart.
func TestAccountsAndJobs(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	use := func(user, account, job string, held int64) Record {
		return Record{
			Kind: KindUse, At: day.Add(time.Hour).UnixMilli(), Tenant: "lab", User: user, GPU: "GPU-0", Lease: "lab-" + job, Job: job,
			Account: account, Amounts: Amounts{Held: held},
		}
	}
	records := []Record{
		use(
			"ann",
			"physics",
			"slurm:1",
			1,
		),
		use("ann", "physics", "slurm:2", 2),
		use("ann", "biology", "slurm:3", 4),
		use("ann", "", "", 8),
	}
	for i := range userAccounts + 1 {
		records = append(records, use("bob", fmt.Sprintf("account-%d", i), "slurm:b", 16))
	}
	held := func(by By, of []Record) map[string]int64 {
		s := NewSums(by, day, day.Add(24*time.Hour))
		for i := range of {
			s.Add(&of[i])
		}
		rows, _ := s.Rows()
		out := map[string]int64{}
		for _, r := range rows {
			out[r.User+" "+r.Account+" "+r.Job] += r.Held
		}
		return out
	}
	ann := records[:4]
	want := map[string]int64{"  ": 8, " physics slurm:1": 1, " physics slurm:2": 2, " biology slurm:3": 4}
	if diff := cmp.Diff(want, held(By{Account: true, Job: true}, ann)); diff != "" {
		t.Errorf("by account and job (-want +got):\n%s", diff)
	}
	sums := Distinct{} // As they are read back: one of each identity counts.
	for _, r := range SumDay(day, records) {
		sums.Add(&r)
	}
	for i, r := range sums.Records() { // A version that knows no accounts reads what each user had.
		if n := map[string]int64{"ann": 15, "bob": 16 * (userAccounts + 1)}[r.User]; r.Held != n || r.Account != "" {
			t.Errorf("sum %d of the day is %+v, want %d", i, r, n)
		}
	}
	want = map[string]int64{"ann  ": 8, "ann physics ": 3, "ann biology ": 4, "bob  ": 16 * (userAccounts + 1)}
	if diff := cmp.Diff(want, held(By{User: true, Account: true, Job: true}, sums.Records())); diff != "" {
		t.Errorf("of the sums of a day (-want +got):\n%s", diff)
	}
}
