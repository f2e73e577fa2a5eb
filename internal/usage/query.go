package usage

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Group is the key of a row. Fields that are not grouped by are empty, and so are those that are not known any more: the sums of
// days have no lease.
type Group struct {
	Tenant string
	User   string
	GPU    gpu.UUID
	Lease  string
}

// By says which keys a row has.
type By struct{ Tenant, User, GPU, Lease bool }

func (by By) group(r *Record) (g Group) {
	if by.Tenant {
		g.Tenant = r.Tenant
	}
	if by.User {
		g.User = r.User
	}
	if by.GPU {
		g.GPU = r.GPU
	}
	if by.Lease {
		g.Lease = r.Lease
	}
	return g
}

// Row is what one group used.
type Row struct {
	Group
	Amounts
}

// Sums adds up the records of a time.
type Sums struct {
	by           By
	since, until time.Time
	rows         map[Group]*Amounts
	lost         int64
}

// NewSums returns empty sums of the hours, and for old days the days, that have a part in [since, until).
func NewSums(by By, since, until time.Time) *Sums {
	return &Sums{by: by, since: since, until: until, rows: map[Group]*Amounts{}}
}

// Add adds a record. It must be given once: see Distinct.
func (s *Sums) Add(r *Record) {
	length := time.Hour
	if r.Kind == KindSum {
		length = 24 * time.Hour
	}
	if from := r.Time().Truncate(length); !from.Before(s.until) || !from.Add(length).After(s.since) {
		return
	}
	s.lost += r.Lost
	switch r.Kind {
	case KindUse, KindStart, KindEnd, KindFold, KindSum:
		g := s.by.group(r)
		a := s.rows[g]
		if a == nil {
			a = &Amounts{}
			s.rows[g] = a
		}
		a.Add(&r.Amounts)
	}
}

// Len returns the number of rows.
func (s *Sums) Len() int { return len(s.rows) }

// Lost returns how many records are known to be lost.
func (s *Sums) Lost() int64 { return s.lost }

// Rows returns the rows in the order of their keys, and what they have together.
func (s *Sums) Rows() (rows []Row, total Amounts) {
	for g, a := range s.rows {
		rows = append(rows, Row{g, *a})
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.User, b.User), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Lease, b.Lease),
		)
	})
	for i := range rows {
		total.Add(&rows[i].Amounts)
	}
	return rows, total
}

// SumDay returns the records that replace those of an old day: one for each tenant, user and GPU, and what was lost.
func SumDay(day time.Time, records []Record) []Record {
	s := NewSums(By{Tenant: true, User: true, GPU: true}, day, day.Add(24*time.Hour))
	for i := range records {
		r := records[i]
		r.At = day.UnixMilli() // A clock that was set may have left another day in the file.
		s.Add(&r)
	}
	rows, _ := s.Rows()
	var out []Record
	for i := range rows {
		out = append(out, Record{
			Kind:    KindSum,
			At:      day.UnixMilli(),
			Tenant:  rows[i].Tenant,
			User:    rows[i].User,
			GPU:     rows[i].GPU,
			Amounts: rows[i].Amounts,
		})
	}
	if s.lost > 0 {
		out = append(out, Record{Kind: KindLost, At: day.UnixMilli(), Lost: s.lost})
	}
	return out
}
