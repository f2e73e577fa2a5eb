package health

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// The states of a GPU that takes no new lease.
const (
	Closed  = "closed"  // until a reset, a boot, or an administrator tries it again
	Testing = "testing" // one of these happened: it is open when its readings are good
)

// Record is why a GPU takes no new lease. The zero value is an open GPU. Each method returns the record after something
// happened; it is written down when it differs.
//
//	open ── an XID that closes, a bad reading ──► closed
//	closed ── a boot, a load of the driver, a reset, retry, or good readings after bad ones ──► testing
//	testing ── good readings ──► open;  bad readings ──► closed
type Record struct {
	State string    // closed | testing; empty: open
	Since time.Time // the GPU takes no new lease
	XID   uint64    // that closed it; 0: a reading did
	Cause string
	// Failed is what was wrong in the last test; empty before the first.
	Failed string
	// Boot and Driver are the epoch in which it was closed: another one means that the GPU was reset.
	Boot   string
	Driver string
	// Bad: since then a reading was bad. When readings are good again, the GPU was reset.
	Bad bool
	// Lost: since then the driver did not find the GPU. When it answers again, it was reset.
	Lost bool
}

// Open reports whether nothing keeps the GPU from new leases.
func (r Record) Open() bool { return r.State == "" }

// Moment is when something happened, and in which epoch.
type Moment struct {
	At           time.Time
	Boot, Driver string
}

func closed(cause string, xid uint64, m Moment) Record {
	return Record{State: Closed, Since: m.At, XID: xid, Cause: cause, Boot: m.Boot, Driver: m.Driver}
}

// AfterXID is the record after the driver reported an XID. The first cause stays, unless the GPU is lost meanwhile.
func (r Record) AfterXID(number uint64, p Policy, m Moment) Record {
	x := Of(number)
	switch {
	case !p.closes(number):
		return r
	case r.Open():
		return closed(x.String(), number, m)
	case r.State == Testing, x.Class == Lost && Of(r.XID).Class != Lost:
		next := closed(x.String(), number, m)
		next.Since = r.Since
		return next
	}
	return r
}

// Seen is what an observation of the node says of one GPU.
type Seen struct {
	Answers bool
	Lost    bool // the driver does not find it. A GPU that only did not answer in time is not lost
	Memory  bool // its memory was read
}

// AfterObservation is the record after the node was observed: a closed GPU that was reset is tested.
func (r Record) AfterObservation(s Seen, m Moment) Record {
	if r.State != Closed {
		return r
	}
	switch {
	case r.Boot != m.Boot || r.Driver != m.Driver, r.Lost && s.Answers:
		return r.tested(m)
	case s.Lost:
		r.Lost = true
	}
	return r
}

// Retried is the record after an administrator tried the GPU again.
func (r Record) Retried(m Moment) Record {
	if r.Open() {
		return r
	}
	return r.tested(m)
}

func (r Record) tested(m Moment) Record {
	r.State, r.Boot, r.Driver, r.Bad, r.Lost = Testing, m.Boot, m.Driver, false, false
	return r
}

// AfterReading is the record after a reading. s is of an observation in the same epoch.
func (r Record) AfterReading(h *gpu.Health, s Seen, p Policy, m Moment) Record {
	bad := Problems(h, p)
	switch r.State {
	case "":
		if cause := closing(h, p); cause != "" {
			r = closed(cause, 0, m)
			r.Bad = true
		}
		return r
	case Closed:
		if len(bad) > 0 {
			r.Bad = true
			return r
		}
		if !r.Bad {
			return r // Nothing shows that it was reset.
		}
		r = r.tested(m)
	}
	if !s.Answers {
		return r // It is tested when it answers.
	}
	if !s.Memory {
		bad = append(bad, "its memory cannot be read")
	}
	if len(bad) == 0 {
		return Record{}
	}
	r.State, r.Failed, r.Bad = Closed, strings.Join(bad, ", "), true
	return r
}

// closing returns why a reading closes an open GPU; empty if it does not.
func closing(h *gpu.Health, p Policy) string {
	switch {
	case requests(h) && p.Do[RecoveryChanged] != ReportOnly:
		return "the driver says that it needs " + recoveryText(h.Recovery)
	case h.Rows != nil && h.Rows.Failed && p.closes(RowsFailed):
		return Of(RowsFailed).Meaning
	case h.Rows != nil && h.Rows.Pending && p.closes(RowsPending):
		return Of(RowsPending).Meaning
	}
	return ""
}

// requests reports whether the driver says that the GPU needs something.
func requests(h *gpu.Health) bool { return h.Recovery != "" && h.Recovery != gpu.RecoveryNone }

// Problems are the readings with which a GPU is not opened again. Those that the spec only reports are none.
func Problems(h *gpu.Health, p Policy) (out []string) {
	if requests(h) && p.Do[RecoveryChanged] != ReportOnly {
		out = append(out, "the driver says that it needs "+recoveryText(h.Recovery))
	}
	if r := h.Rows; r != nil && r.Failed && p.Do[RowsFailed] != ReportOnly {
		out = append(out, Of(RowsFailed).Meaning)
	}
	if r := h.Rows; r != nil && r.Pending && p.Do[RowsPending] != ReportOnly {
		out = append(out, "rows of its memory wait for a reset")
	}
	return out
}

func recoveryText(action string) string {
	switch action {
	case gpu.RecoveryReset:
		return "a reset"
	case gpu.RecoveryReboot:
		return "a boot of the node"
	case gpu.RecoveryDrainP2P:
		return "an end of its peer-to-peer traffic"
	case gpu.RecoveryDrainAndReset:
		return "a reset after its leases have ended"
	case gpu.RecoveryIMEX:
		return "a recovery of the memory that it shares with other nodes"
	case gpu.RecoveryBusReset:
		return "a reset of its PCI bus"
	}
	return action
}

// Reason is why the GPU takes no new lease, in one sentence.
func (r Record) Reason() string {
	switch {
	case r.Open():
		return ""
	case r.State == Testing:
		return "it is tested after " + r.Cause
	case r.Failed != "":
		return fmt.Sprintf("%s; its test failed: %s", r.Cause, r.Failed)
	}
	return r.Cause
}

// Helps is what opens it again. name is how commands name the GPU.
func (r Record) Helps(name string) string {
	retry := "'gpushare gpu retry " + name + "' tests it again"
	if r.State == Testing {
		return "it opens by itself when its readings are good; " + retry
	}
	helps := cmp.Or(Of(r.XID).Class.Helps(name), Reset.Helps(name))
	if r.XID == RowsFailed || r.Cause == Of(RowsFailed).Meaning || strings.Contains(r.Failed, Of(RowsFailed).Meaning) {
		helps = "exchange the board if a reset does not help"
	}
	return helps + "; a reset or a boot opens it by itself when its readings are good, and " + retry
}
