package usage

import (
	"slices"
	"strconv"
)

// Unfinished is a lease that had not ended when the previous run of the daemon did.
type Unfinished struct {
	Last  Record // of its use; its start if there is none
	Facts *Facts // nil: the record of its start is not there
}

// FindUnfinished returns the leases without an end, in the order of their generations.
func FindUnfinished(records []Record) []*Unfinished {
	type key struct {
		id         string
		generation uint64
		created    int64
	}
	open, order := map[key]*Unfinished{}, []key(nil)
	for i := range records {
		r := &records[i]
		k := key{r.Lease, r.Generation, r.Created}
		switch r.Kind {
		case KindUse, KindStart:
			u := open[k]
			if u == nil {
				u = &Unfinished{Last: *r}
				open[k], order = u, append(order, k)
			}
			if r.Kind == KindStart {
				u.Facts = r.Facts
			}
			if r.Elapsed >= u.Last.Elapsed && r.Kind == KindUse {
				u.Last = *r
			}
		}
	}
	for i := range records {
		if r := &records[i]; r.Kind == KindEnd {
			delete(open, key{r.Lease, r.Generation, r.Created})
		}
	}
	var out []*Unfinished
	for _, k := range order {
		if u := open[k]; u != nil {
			out = append(out, u)
		}
	}
	return out
}

// Close returns the end of the lease at the last time at which it was seen.
func (u *Unfinished) Close(reason, result string, exitCode *int) Record {
	r := u.Last
	facts := Facts{}
	if u.Facts != nil {
		facts = *u.Facts
	}
	facts.Reason, facts.Result, facts.ExitCode = reason, result, exitCode
	r.Kind, r.Run, r.Part, r.Seq, r.Idle, r.Facts = KindEnd, "", 0, 0, 0, &facts
	r.Amounts = Amounts{Ends: 1, Exits: ExitOf(exitCode)}
	return r
}

// ExitOf returns the Exits of one lease.
func ExitOf(code *int) map[string]int64 {
	if code == nil {
		return map[string]int64{UnknownExit: 1}
	}
	return map[string]int64{strconv.Itoa(*code): 1}
}

// LastBoot returns the boot in which the previous run of the daemon was; empty if that is not known.
func LastBoot(records []Record) string {
	boot, at := "", int64(0)
	for i := range records {
		if r := &records[i]; r.Kind == KindRun && r.At >= at {
			boot, at = r.BootID, r.At
		}
	}
	return boot
}

// Recover goes on with the leases of the previous run that still run, ends the others at the last time at which they were
// seen, and returns their ends. live are the leases that run now; sameBoot says that the node was not started since. A live
// lease that is not in unfinished is begun: the previous run was killed before it wrote its start.
func (m *Meter) Recover(unfinished []*Unfinished, live []Lease, sameBoot bool, reason string, now Moment) []Record {
	var ends []Record
	last := map[int]*Record{}
	for _, u := range unfinished {
		i := slices.IndexFunc(live, func(l Lease) bool {
			return l.ID == u.Last.Lease && l.Generation == u.Last.Generation && l.Created.UnixMilli() == u.Last.Created
		})
		if i >= 0 && sameBoot {
			last[i] = &u.Last
			continue
		}
		ends = append(ends, u.Close(reason, "", nil))
	}
	for i := range live {
		if last[i] == nil {
			m.StartLate(live[i], now)
		} else {
			m.Resume(live[i], last[i], now)
		}
	}
	return ends
}
