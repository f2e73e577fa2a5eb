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
	// Account and Job are of keyed leases. A day that is summed up has no job, and a user's leases that were folded have neither.
	Account string
	Job     string
}

// By says which keys a row has.
type By struct{ Tenant, User, GPU, Lease, Account, Job bool }

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
	if by.Account {
		g.Account = r.Account
	}
	if by.Job {
		g.Job = r.Job
	}
	return g
}

// Row is what one group used.
type Row struct {
	Group
	Amounts
}

// Sums adds up the records of a time: those of leases, or those of what was used outside of leases.
type Sums struct {
	outside      bool
	by           By
	since, until time.Time
	rows         map[Group]*Amounts
	lost         int64
}

// NewSums returns empty sums of the hours, and for old days the days, that have a part in [since, until).
func NewSums(by By, since, until time.Time) *Sums {
	return &Sums{by: by, since: since, until: until, rows: map[Group]*Amounts{}}
}

// NewOutsideSums returns empty sums of what was used outside of leases. These rows have no tenant and no lease.
func NewOutsideSums(by By, since, until time.Time) *Sums {
	s := NewSums(By{User: by.User, GPU: by.GPU}, since, until)
	s.outside = true
	return s
}

// counts reports whether a record is of those that are added up here.
func (s *Sums) counts(k Kind) bool {
	switch k {
	case KindUse, KindStart, KindEnd, KindFold, KindSum:
		return !s.outside
	case KindOutside, KindOutsideSum:
		return s.outside
	}
	return false
}

// Add adds a record. It must be given once: see Distinct.
func (s *Sums) Add(r *Record) {
	length := time.Hour
	if r.Kind == KindSum || r.Kind == KindOutsideSum {
		length = 24 * time.Hour
	}
	if from := r.Time().Truncate(length); !from.Before(s.until) || !from.Add(length).After(s.since) {
		return
	}
	s.lost += r.Lost
	if !s.counts(r.Kind) {
		return
	}
	g := s.by.group(r)
	if !s.by.Account || len(r.Accounts) == 0 {
		s.add(g, &r.Amounts)
		return
	}
	for i := range r.Accounts {
		g.Account = r.Accounts[i].Account
		s.add(g, &r.Accounts[i].Amounts)
	}
}

func (s *Sums) add(g Group, used *Amounts) {
	a := s.rows[g]
	if a == nil {
		a = &Amounts{}
		s.rows[g] = a
	}
	a.Add(used)
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
			cmp.Compare(a.Account, b.Account), cmp.Compare(a.Job, b.Job),
		)
	})
	for i := range rows {
		total.Add(&rows[i].Amounts)
	}
	return rows, total
}

// records returns one record for each row.
func (s *Sums) records(k Kind, day time.Time) []Record {
	rows, _ := s.Rows()
	var out []Record
	for i := range rows {
		out = append(out, Record{
			Kind:    k,
			At:      day.UnixMilli(),
			Tenant:  rows[i].Tenant,
			User:    rows[i].User,
			GPU:     rows[i].GPU,
			Amounts: rows[i].Amounts,
		})
	}
	return out
}

// userAccounts is how many accounts of one user the sums of a day keep apart: an engine may take any text for one from its users.
const userAccounts = 32

// accountsOf returns the account that the sums of a day have for a record.
func accountsOf(records []Record) func(r *Record) string {
	seen := map[string]map[string]bool{}
	for i := range records {
		r := &records[i]
		if seen[r.User] == nil {
			seen[r.User] = map[string]bool{}
		}
		if r.Account != "" && len(seen[r.User]) <= userAccounts {
			seen[r.User][r.Account] = true
		}
	}
	return func(r *Record) string {
		if len(seen[r.User]) > userAccounts {
			return ""
		}
		return r.Account
	}
}

// SumDay returns the records that replace those of an old day: one for each tenant, user and GPU, with the parts of its accounts, one for
// each user and GPU of what was used outside of leases, and what was lost.
func SumDay(day time.Time, records []Record) []Record {
	by, until := By{Tenant: true, User: true, GPU: true}, day.Add(24*time.Hour)
	s, outside := NewSums(by, day, until), NewOutsideSums(by, day, until)
	by.Account = true
	parts := NewSums(by, day, until)
	account := accountsOf(records)
	for i := range records {
		r := records[i]
		r.Account = account(&r)
		r.At = day.UnixMilli() // A clock that was set may have left another day in the file.
		s.Add(&r)
		parts.Add(&r)
		outside.Add(&r)
	}
	out := s.records(KindSum, day)
	parts.divide(out)
	out = append(out, outside.records(KindOutsideSum, day)...)
	if s.lost > 0 {
		out = append(out, Record{Kind: KindLost, At: day.UnixMilli(), Lost: s.lost})
	}
	return out
}

// divide gives the sums of a day their parts by account. Sums without an account have none. An older version reads only the sums.
func (s *Sums) divide(sums []Record) {
	rows, _ := s.Rows()
	at := map[Group]int{}
	for i := range sums {
		at[Group{Tenant: sums[i].Tenant, User: sums[i].User, GPU: sums[i].GPU}] = i
	}
	for i := range rows {
		whole := rows[i].Group
		whole.Account = ""
		r := &sums[at[whole]]
		r.Accounts = append(r.Accounts, AccountPart{rows[i].Account, rows[i].Amounts})
	}
	for i := range sums {
		if a := sums[i].Accounts; len(a) == 1 && a[0].Account == "" {
			sums[i].Accounts = nil
		}
	}
}
