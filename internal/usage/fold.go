package usage

import (
	"cmp"
	"encoding/json"
	"slices"
)

// The account of a day has a bound, and one user can start thousands of short leases: those of a user who has more than a part
// of the file are folded, so that the file has space for the records of others. What was used stays exact; which lease used
// it does not.
const (
	// userBytes is how much of the file of a day the records of one user may have, before the older of their ended leases are
	// folded. A user with 64 leases that run all day has less than 1 MiB.
	userBytes = 2 << 20
	// foldAbove is the size of a file below which nothing is folded: most nodes never have it.
	foldAbove = 4 << 20
)

// leaseOfRecord is what the records of one lease have in common.
type leaseOfRecord struct {
	id         string
	generation uint64
	created    int64
}

func (r *Record) lease() leaseOfRecord { return leaseOfRecord{r.Lease, r.Generation, r.Created} }

// foldLeases returns the records of a day in which the older leases of users with more than share bytes are one record for
// each hour, tenant, user and GPU. Only leases whose start and end are there are folded, and none that is live: more
// records of it may come. bytes is how much each user has afterwards.
func foldLeases(records []Record, share int64, live func(id string, generation uint64) bool) (kept []Record, bytes map[string]int64) {
	sizes := make([]int64, len(records))
	bytes = map[string]int64{}
	for i := range records {
		b, err := json.Marshal(&records[i])
		if err != nil { // It was read from JSON.
			continue
		}
		sizes[i] = int64(len(b))
		bytes[records[i].User] += sizes[i]
	}
	folded := map[leaseOfRecord]bool{}
	for user, n := range bytes {
		if n > share && user != "" {
			for _, l := range oldest(records, sizes, user, n-share/2, live) {
				folded[l] = true
			}
		}
	}
	sums := Distinct{}
	for i := range records {
		r := &records[i]
		if !folded[r.lease()] {
			kept = append(kept, *r)
			continue
		}
		bytes[r.User] -= sizes[i]
		at := hour(r.Time())
		f := Record{Kind: KindFold, At: at.UnixMilli(), Tenant: r.Tenant, User: r.User, GPU: r.GPU, Part: at.Unix()}
		if j, ok := sums.index[f.identity()]; ok {
			sums.all[j].Amounts.Add(&r.Amounts)
			continue
		}
		f.Amounts.Add(&r.Amounts)
		sums.Add(&f)
	}
	// What was folded before and now are one record.
	for _, f := range sums.Records() {
		i := slices.IndexFunc(kept, func(r Record) bool { return r.Kind == KindFold && r.identity() == f.identity() })
		if i < 0 {
			f.Seq = 1
			kept = append(kept, f)
			continue
		}
		kept[i].Amounts = kept[i].Amounts.copied()
		kept[i].Amounts.Add(&f.Amounts)
		kept[i].Seq++
	}
	return kept, bytes
}

// copied returns amounts that share no map.
func (a *Amounts) copied() Amounts {
	c := Amounts{}
	c.Add(a)
	return c
}

// oldest returns the leases of a user that ended first, as many as have excess bytes together.
func oldest(records []Record, sizes []int64, user string, excess int64, live func(string, uint64) bool) []leaseOfRecord {
	type run struct {
		lease          leaseOfRecord
		bytes, end     int64
		started, ended bool
	}
	all := map[leaseOfRecord]*run{}
	for i := range records {
		r := &records[i]
		if r.User != user || r.Lease == "" {
			continue
		}
		l := all[r.lease()]
		if l == nil {
			l = &run{lease: r.lease()}
			all[r.lease()] = l
		}
		l.bytes += sizes[i]
		l.started = l.started || r.Kind == KindStart
		if r.Kind == KindEnd {
			l.ended, l.end = true, r.At
		}
	}
	var over []*run
	for _, l := range all {
		if l.started && l.ended && !live(l.lease.id, l.lease.generation) {
			over = append(over, l)
		}
	}
	slices.SortFunc(over, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.lease.generation, b.lease.generation))
	})
	var out []leaseOfRecord
	for _, l := range over {
		if excess <= 0 {
			break
		}
		excess -= l.bytes
		out = append(out, l.lease)
	}
	return out
}

// crowded is what is known of the file of a day that was folded.
type crowded struct {
	size  int64            // after that
	bytes map[string]int64 // of each user
	share int64
}

// fold folds the leases of users with more than their part of a day's file, if it has grown by a quarter since the last time. It
// folds no lease of records that are appended after it.
func (s *Store) fold(day string, next []Record) error {
	size, err := s.lines.Size(day)
	if err != nil || size < max(s.foldAbove, s.crowded[day].size*5/4) {
		return err
	}
	b, err := s.read(s.lines, day)
	if err != nil {
		return err
	}
	records, users := b.Records(), map[string]bool{}
	for i := range records {
		users[records[i].User] = true
	}
	c := crowded{share: min(s.userBytes, s.dayBytes/2/int64(max(1, len(users))))}
	waiting, live := map[leaseKey]bool{}, s.live()
	for i := range next {
		waiting[leaseKey{next[i].Lease, next[i].Generation}] = true
	}
	var kept []Record
	kept, c.bytes = foldLeases(records, c.share, func(id string, generation uint64) bool {
		return waiting[leaseKey{id, generation}] || live(id, generation)
	})
	if err := s.replace(day, kept); err != nil {
		return err
	}
	c.size, err = s.lines.Size(day)
	for d := range s.crowded { // A clock that jumps must not collect days.
		if d < day {
			delete(s.crowded, d)
		}
	}
	s.crowded[day] = c
	return err
}

// fitting returns the records that may be added to a day's file which has become too large: those of users that have less than
// their part of it, and one that counts the others.
func (s *Store) fitting(day string, size int64, records []Record) []Record {
	if size < s.dayBytes {
		return records
	}
	c := s.crowded[day]
	most := c.size + 2*s.dayBytes // Users who have less than their part have half of dayBytes together.
	var out []Record
	lost := int64(0)
	for i := range records {
		if size >= most || c.bytes[records[i].User] >= c.share && records[i].User != "" {
			lost++
			continue
		}
		out = append(out, records[i])
	}
	if lost > 0 && size < most+s.dayBytes {
		s.drops++
		out = append(out, Record{Kind: KindLost, At: startOf(day).UnixMilli(), Run: "full " + s.name, Part: s.drops, Lost: lost})
	}
	return out
}

// live returns the leases of which more records may come.
func (s *Store) live() func(id string, generation uint64) bool {
	if s.Live == nil {
		return func(string, uint64) bool { return false }
	}
	return s.Live()
}

// Live returns whether a lease runs, or may have more records for another reason.
func (m *Meter) Live() func(id string, generation uint64) bool {
	all := make(map[leaseKey]bool, len(m.leases))
	for key := range m.leases {
		all[key] = true
	}
	for i := range m.ready {
		all[leaseKey{m.ready[i].Lease, m.ready[i].Generation}] = true
	}
	return func(id string, generation uint64) bool { return all[leaseKey{id, generation}] }
}
