package usage

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Kind is the kind of a record.
type Kind string

// The kinds of records.
const (
	KindUse   Kind = "use"   // what a lease used of a GPU in a part of an hour, so far: the last one of a part counts
	KindStart Kind = "start" // a lease started
	KindEnd   Kind = "end"   // a lease ended
	KindRun   Kind = "run"   // the daemon started
	KindLost  Kind = "lost"  // records could not be written
	KindFold  Kind = "fold"  // what a user of a tenant used of a GPU in an hour with leases that have no records of their own any more
	KindSum   Kind = "sum"   // what a user of a tenant used of a GPU on one day

	KindOutside    Kind = "outside"     // what a user used of a GPU outside of leases in a part of an hour, so far
	KindOutsideSum Kind = "outside-sum" // the same on one day
)

// Record is one line of the account. Reading a line twice, or an older line of the same part after a newer one, changes
// nothing.
type Record struct {
	Kind Kind  `json:"k"`
	At   int64 `json:"at"`          // system clock, in milliseconds since the epoch: of the last use, the start, the end
	Boot int64 `json:"t,omitempty"` // time since boot, in milliseconds, at At

	Lease      string   `json:"l,omitempty"`
	Generation uint64   `json:"g,omitempty"`
	Tenant     string   `json:"tn,omitempty"`
	Grant      string   `json:"gr,omitempty"`
	User       string   `json:"u,omitempty"`
	Account    string   `json:"ac,omitempty"` // of the engine that requested the lease
	Job        string   `json:"j,omitempty"`  // the engine's key of it
	GPU        gpu.UUID `json:"d,omitempty"`  // of a start or an end: the first GPU of the lease
	Created    int64    `json:"c,omitempty"`  // when the lease was requested, in milliseconds since the epoch

	// Run names the run of the daemon, Part counts its parts, Seq the records of a part.
	Run  string `json:"r,omitempty"`
	Part int64  `json:"pt,omitempty"`
	Seq  int64  `json:"n,omitempty"`

	Started int64 `json:"st,omitempty"` // when the lease started, in milliseconds since the epoch
	Elapsed int64 `json:"el,omitempty"` // since then, by a clock that no program sets, in milliseconds
	Idle    int64 `json:"i,omitempty"`  // for how long the lease was seen idle, up to now, in milliseconds
	Highest int64 `json:"lp,omitempty"` // the most GPU memory that the lease had on one GPU since its start, in bytes

	Amounts

	// Accounts are the parts of a sum, which together have its amounts; none if no lease had an account.
	Accounts []AccountPart `json:"acs,omitempty"`

	BootID string `json:"boot,omitempty"` // of a run
	Lost   int64  `json:"lost,omitempty"` // records
	Facts  *Facts `json:"f,omitempty"`    // of a start and an end
}

// AccountPart is what the leases of one account used; without a name, those that had none.
type AccountPart struct {
	Account string `json:"ac,omitempty"`
	Amounts
}

// Facts are what a lease is, and after its end why and how it ended.
type Facts struct {
	Kind     string   `json:"kind,omitempty"`
	Origin   string   `json:"origin,omitempty"`
	UID      int      `json:"uid"`
	Command  []string `json:"command,omitempty"`
	GPUs     []string `json:"gpus,omitempty"`
	Devices  []string `json:"devices,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Result   string   `json:"result,omitempty"`
	ExitCode *int     `json:"exit_code,omitempty"`
}

// Time returns At.
func (r *Record) Time() time.Time { return time.UnixMilli(r.At) }

// Day is the UTC date of the file that the record belongs to.
func (r *Record) Day() string { return r.Time().UTC().Format(time.DateOnly) }

// hour returns the beginning of the hour of a time.
func hour(t time.Time) time.Time { return t.Truncate(time.Hour) }

// identity is what two records have in common of which only one counts.
type identity struct {
	kind       Kind
	lease      string
	generation uint64
	created    int64
	gpu        gpu.UUID
	run        string
	part       int64
	tenant     string
	user       string
}

func (r *Record) identity() identity {
	switch r.Kind {
	case KindUse:
		return identity{kind: r.Kind, lease: r.Lease, generation: r.Generation, gpu: r.GPU, run: r.Run, part: r.Part}
	case KindStart, KindEnd: // One end of a lease counts, whichever run of the daemon saw it.
		return identity{kind: r.Kind, lease: r.Lease, generation: r.Generation, created: r.Created}
	case KindFold:
		return identity{kind: r.Kind, part: r.Part, tenant: r.Tenant, user: r.User, gpu: r.GPU}
	case KindSum, KindOutsideSum:
		return identity{kind: r.Kind, tenant: r.Tenant, user: r.User, gpu: r.GPU}
	case KindOutside:
		return identity{kind: r.Kind, user: r.User, gpu: r.GPU, run: r.Run, part: r.Part}
	}
	return identity{kind: r.Kind, run: r.Run, part: r.Part}
}

// Distinct is the records of one day, of which each counts once. The zero value is empty.
type Distinct struct {
	index map[identity]int
	all   []Record
}

// Add adds a record, or replaces the one of the same identity if it is newer.
func (b *Distinct) Add(r *Record) {
	if b.index == nil {
		b.index = map[identity]int{}
	}
	id := r.identity()
	i, ok := b.index[id]
	switch {
	case !ok:
		b.index[id] = len(b.all)
		b.all = append(b.all, *r)
	case r.Seq > b.all[i].Seq:
		b.all[i] = *r
	}
}

// Has reports whether there is a record of the same identity.
func (b *Distinct) Has(r *Record) bool { _, ok := b.index[r.identity()]; return ok }

// Records returns what counts, in the order in which it was first added. It is valid until the next Add.
func (b *Distinct) Records() []Record { return b.all }
