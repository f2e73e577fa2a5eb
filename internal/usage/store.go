package usage

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/ledger"
)

// Limits bound what is kept. The zero value is the default.
type Limits struct {
	Lines int   // days whose records are kept; 0: 35
	Sums  int   // days whose sums are kept; 0: 400
	Bytes int64 // of all records, and again of all sums; 0: 64 MiB. The oldest day goes first, never the newest
}

const (
	defaultLines = 35
	defaultSums  = 400
	defaultBytes = 64 << 20
	dayLength    = 24 * time.Hour
)

// defaultDayBytes is how large the file of one day may become: a reader holds the records of one day. 64 leases that run all
// day have less than 1 MiB.
const defaultDayBytes = 32 << 20

// rewriteAfter is how many lines may be added to a file before those that no longer count are removed from it.
const rewriteAfter = 8192

// Store keeps records in files, one for each UTC day, and the sums of old days. A day whose records are there does not use its
// sums: they are being replaced. Writing and keeping is done by one goroutine.
type Store struct {
	dir         string
	lines, sums *ledger.Days
	limits      Limits
	added       map[string]int // lines since the file of a day was rewritten

	// Live returns the leases of which more records may come, nil: there are none. It is called by the writer, not in Write's
	// caller's locks.
	Live func() func(id string, generation uint64) bool

	unfolded map[string]error // the days whose file could not be made smaller, with the reasons

	name    string             // of this run, in records of lost ones
	drops   int64              // how many of these there are
	crowded map[string]crowded // by day
	// The bounds, which tests lower.
	dayBytes, userBytes, foldAbove int64
}

// OpenStore opens the account in a directory, which is created if it is missing.
func OpenStore(dir string, l Limits) (*Store, error) {
	if l.Lines == 0 {
		l.Lines = defaultLines
	}
	if l.Sums == 0 {
		l.Sums = defaultSums
	}
	if l.Bytes == 0 {
		l.Bytes = defaultBytes
	}
	lines, err := ledger.OpenDays(dir, "usage")
	if err != nil {
		return nil, err
	}
	sums, err := ledger.OpenDays(dir, "usage-sums")
	if err != nil {
		return nil, err
	}
	days, err := lines.List()
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, lines: lines, sums: sums, limits: l, added: map[string]int{}, name: rand.Text()[:12],
		crowded: map[string]crowded{}, unfolded: map[string]error{}, dayBytes: defaultDayBytes, userBytes: userBytes, foldAbove: foldAbove,
	}
	for _, day := range newest(days) { // The previous run may have ended before it rewrote them.
		s.added[day] = rewriteAfter
	}
	return s, nil
}

// Removals counts how often another program was found to have removed files that were written. What is written next begins new files.
func (s *Store) Removals() uint64 { return s.lines.Removals() + s.sums.Removals() }

// newest returns the last two days: a lease that had not ended at the end of the previous run has a record in them.
func newest(days []string) []string { return days[max(0, len(days)-2):] }

// Write appends records and waits until they are on the disk. After an error all of them are to be written again. A file that
// has become large is made smaller at the expense of the users with the most records, never of all. Unfolded says if that failed:
// the records are written nevertheless, and once more they would count twice.
func (s *Store) Write(records []Record) error {
	days, err := s.write(records)
	if err != nil {
		return err
	}
	for _, day := range days {
		s.unfolded[day] = nil
	}
	for _, day := range sortedKeys(s.unfolded) {
		if err := s.fold(day, nil); err != nil {
			s.unfolded[day] = fmt.Errorf("cannot fold the account of %s: %w", day, err)
			continue
		}
		delete(s.unfolded, day)
	}
	return nil
}

// Unfolded says why files could not be made smaller. The next Write tries it again.
func (s *Store) Unfolded() error { return errors.Join(slices.Collect(maps.Values(s.unfolded))...) }

func (s *Store) write(records []Record) (days []string, err error) {
	byDay := map[string][]Record{}
	for i := range records {
		r := records[i]
		day, err := s.dayFor(&r)
		if err != nil {
			return nil, err
		}
		byDay[day] = append(byDay[day], r)
	}
	days = sortedKeys(byDay)
	for _, day := range days {
		n, err := s.lines.Size(day)
		if err != nil {
			return nil, err
		}
		if _, known := s.crowded[day]; n >= s.dayBytes && !known { // The previous run made it so large.
			// What an attempt that failed has appended of these records is there: it must remain what the next attempt appends.
			if err := s.fold(day, records); err != nil {
				return nil, err
			}
			if n, err = s.lines.Size(day); err != nil {
				return nil, err
			}
		}
		fit := s.fitting(day, n, byDay[day])
		if len(fit) == 0 {
			continue
		}
		if err := ledger.Append(s.lines, day, fit); err != nil {
			return nil, err
		}
		s.added[day] += len(fit)
	}
	return days, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// dayFor returns the day to whose file a record goes: its own, unless only the sums of that day are left. A clock that was set
// back by weeks does that; the record is then counted to the next day that is open.
func (s *Store) dayFor(r *Record) (string, error) {
	for {
		day := r.Day()
		n, err := s.lines.Size(day)
		if err != nil {
			return "", err
		}
		sums, err := s.sums.Size(day)
		if err != nil || n > 0 || sums == 0 {
			return day, err
		}
		r.At = startOf(day).Add(dayLength).UnixMilli()
	}
}

func startOf(day string) time.Time {
	t, _ := time.Parse(time.DateOnly, day) // The name of a file was parsed before.
	return t
}

// Newest returns the date of the newest file; the zero time if there is none.
func (s *Store) Newest() (time.Time, error) {
	days, err := s.lines.List()
	if err != nil || len(days) == 0 {
		return time.Time{}, err
	}
	return startOf(days[len(days)-1]), nil
}

// Begin returns when the account begins: the time of the first record of its first day, if that day's records are there. The zero time:
// there is none.
func (s *Store) Begin() (time.Time, error) {
	lines, err := s.lines.List()
	if err != nil {
		return time.Time{}, err
	}
	sums, err := s.sums.List()
	switch {
	case err != nil || len(lines)+len(sums) == 0:
		return time.Time{}, err
	case len(sums) > 0 && (len(lines) == 0 || sums[0] < lines[0]):
		return startOf(sums[0]), nil
	}
	b, err := s.read(s.lines, lines[0])
	if err != nil {
		return time.Time{}, err
	}
	first := startOf(lines[0]).Add(dayLength)
	for i := range b.all {
		if at := b.all[i].Time(); at.Before(first) {
			first = at
		}
	}
	return first, nil
}

// Recent returns the records of the last two days that have any: those of all leases that had not ended when the previous run
// of the daemon did are among them.
func (s *Store) Recent() ([]Record, error) {
	days, err := s.lines.List()
	if err != nil {
		return nil, err
	}
	var all []Record
	for _, day := range newest(days) {
		b, err := s.read(s.lines, day)
		if err != nil {
			return nil, err
		}
		all = append(all, b.Records()...)
	}
	return all, nil
}

// read reads a day. Lines that cannot be read count as lost records.
func (s *Store) read(d *ledger.Days, day string) (*Distinct, error) {
	b, unread := &Distinct{}, 0
	skipped, err := d.Read(day, func(m json.RawMessage) bool {
		var r Record
		if json.Unmarshal(m, &r) != nil {
			unread++
			return true
		}
		b.Add(&r)
		return true
	})
	if err != nil {
		return nil, err
	}
	if n := skipped + unread; n > 0 {
		// The name makes it another record than that of an earlier reading, whose damaged lines are no longer in the file.
		b.Add(&Record{Kind: KindLost, At: startOf(day).UnixMilli(), Run: "damaged", Part: int64(len(b.all)), Lost: int64(n)})
	}
	return b, nil
}

// Each calls each with every record of the days that have a part in [since, until), a day after the other, and with those of
// newer that belong to them; of a part only its last record. It holds the records of one day at a time. from is the
// beginning of the first day of which only sums are left, if since is later; otherwise since.
func (s *Store) Each(since, until time.Time, newer []Record, each func(*Record) error) (from time.Time, err error) {
	lines, err := s.lines.List()
	if err != nil {
		return since, err
	}
	sums, err := s.sums.List()
	if err != nil {
		return since, err
	}
	days, fresh := map[string]*ledger.Days{}, map[string][]*Record{}
	for _, day := range sums {
		days[day] = s.sums
	}
	for _, day := range lines {
		days[day] = s.lines
	}
	for i := range newer {
		day := newer[i].Day()
		fresh[day] = append(fresh[day], &newer[i])
		days[day] = s.lines
	}
	from = since
	for _, day := range sortedKeys(days) {
		if begin := startOf(day); !begin.Before(until) || !begin.Add(dayLength).After(since) {
			continue
		}
		b, err := s.read(days[day], day)
		if err != nil {
			return since, err
		}
		if begin := startOf(day); days[day] == s.sums && begin.Before(from) {
			from = begin
		}
		for _, r := range fresh[day] {
			b.Add(r)
		}
		for i := range b.all {
			if err := each(&b.all[i]); err != nil {
				return since, err
			}
		}
	}
	return from, nil
}

// Grown reports whether a file is to be rewritten before the next regular Keep.
func (s *Store) Grown() bool {
	for _, n := range s.added {
		if n >= rewriteAfter {
			return true
		}
	}
	return false
}

// Keep rewrites files that have many lines that no longer count, replaces the records of old days by their sums, and removes
// old sums. Without trusted the clock may be wrong, and nothing is removed for its age. A failure is not repeated for the next
// day: the disk may be full, and everything stays as it is.
func (s *Store) Keep(now time.Time, trusted bool) error {
	var errs []error
	today := now.UTC().Format(time.DateOnly)
	for _, day := range sortedKeys(s.added) {
		if n := s.added[day]; n < rewriteAfter && (day >= today || n <= 0) {
			continue
		}
		errs = append(errs, s.rewrite(day))
	}
	old := func(days int) string {
		if !trusted {
			return ""
		}
		return now.UTC().AddDate(0, 0, -days).Format(time.DateOnly)
	}
	errs = append(
		errs, prune(s.lines, old(s.limits.Lines), s.limits.Bytes, s.sumUp),
		prune(s.sums, old(s.limits.Sums), s.limits.Bytes, s.sums.Remove),
	)
	return errors.Join(errs...)
}

// prune removes the days before a date, and the oldest while all files are too large together.
func prune(d *ledger.Days, before string, most int64, remove func(day string) error) error {
	days, err := d.List()
	if err != nil {
		return err
	}
	var total int64
	sizes := make([]int64, len(days))
	for i, day := range days {
		if sizes[i], err = d.Size(day); err != nil {
			return err
		}
		total += sizes[i]
	}
	for i, day := range days {
		if day >= before && (total <= most || i == len(days)-1) {
			break
		}
		if err := remove(day); err != nil {
			return err
		}
		total -= sizes[i]
	}
	return nil
}

// rewrite removes the lines of a day that no longer count.
func (s *Store) rewrite(day string) error {
	b, err := s.read(s.lines, day)
	if err == nil {
		err = s.replace(day, b.Records())
	}
	return err
}

// replace replaces the records of a day.
func (s *Store) replace(day string, records []Record) error {
	if err := ledger.Replace(s.lines, day, records); err != nil {
		return fmt.Errorf("cannot rewrite the account of %s: %w", day, err)
	}
	// A file of many records is rewritten when it has grown by as many.
	s.added[day] = min(0, rewriteAfter-len(records))
	if s.added[day] == 0 {
		delete(s.added, day)
	}
	return nil
}

// sumUp replaces the records of a day by their sums. Until the records are removed they are what counts.
func (s *Store) sumUp(day string) error {
	b, err := s.read(s.lines, day)
	if err == nil {
		err = ledger.Replace(s.sums, day, SumDay(startOf(day), b.Records()))
	}
	if err == nil {
		err = s.lines.Remove(day)
	}
	if err != nil {
		return fmt.Errorf("cannot sum up the account of %s: %w", day, err)
	}
	delete(s.added, day)
	return nil
}
