package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/ledger"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/text"
)

const (
	// auditBytes is how much one user may add to the audit at once, and in each day, in bytes. What is more is counted. All
	// callers without a role have one such amount together, because one user may have thousands of uids in a user namespace.
	// 256 users who add as much as they may fill the files of the audit (64 MiB) in one day.
	auditBytes = 256 << 10
	// auditLineBytes is added for the line around an entry.
	auditLineBytes = 200
	// countInterval is how long refusals are counted before they are one entry; while the user may add nothing, it is
	// longestCount.
	countInterval = time.Minute
	longestCount  = time.Hour
	// mostCounted is for how many users refusals are counted at a time; those of others are counted together.
	mostCounted = 256
	// auditTextBytes is the longest text of an entry.
	auditTextBytes = 1 << 10
)

// The users of entries that are not of one user.
const (
	uidDaemon = -1
	uidOthers = -2
)

// Entry is one entry of the audit.
type Entry = ledger.Audit

// auditor bounds what each user adds to the audit.
type auditor struct {
	mu      locks.Mutex[locks.Leaf] // guards what follows
	spent   map[int]*allowance      // by uid
	counted map[int]*tally          // by uid
	seen    uint64                  // lost entries that were reported
	damaged []string                // what is wrong with the files and was not reported
	damages []string                // what was, the newest last
	kept    uint64                  // the number of the line that is kept in the state
}

// allowance is what a user has added.
type allowance struct {
	bytes float64
	at    time.Time
}

// tally counts refusals of one user.
type tally struct {
	by, role string
	since    time.Time
	kinds    map[string]uint64
	last     string
}

// Audit records an action of the daemon itself.
func (r *Reporter) Audit(by, what, sentence string) {
	r.append(Entry{By: by, UID: uidDaemon, What: what, Text: sentence})
}

// Record records an action of a user, or its refusal. It does not wait for the disk. Beyond the user's share of the audit it is only
// counted.
func (r *Reporter) Record(e Entry) {
	e.Text, e.Command = text.Short(e.Text, auditTextBytes), text.Short(e.Command, auditTextBytes)
	if !r.auditor.take(&e, r.Now()) {
		r.Count(e)
		return
	}
	r.append(e)
}

// Count counts a refusal, which becomes a part of one entry a minute.
func (r *Reporter) Count(e Entry) { r.auditor.count(&e, r.Now()) }

func (r *Reporter) append(e Entry) {
	e.At = r.Now()
	if r.Generation != nil {
		e.Generation = r.Generation()
	}
	if r.Audits != nil {
		if err := r.Audits.Append(e); err != nil {
			r.Log.Warn("cannot write the audit ledger", "error", err)
		}
	}
	if e.Kind != "" {
		r.Log.Info("refused", "message_id", MessageRefused, "by", e.By, "uid", e.UID, "what", e.What, "kind", e.Kind, "text", e.Text)
		return
	}
	r.Log.Info("changed", "message_id", MessageChanged, "by", e.By, "what", e.What, "text", e.Text)
}

// take reports whether the user may add the entry. Administrators always may: what they do must not be lost because of what they
// did before.
func (a *auditor) take(e *Entry, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.takeLocked(e, now)
}

func (a *auditor) takeLocked(e *Entry, now time.Time) bool {
	if e.Role == "admin" {
		return true
	}
	uid := e.UID
	if e.Role == "none" {
		uid = uidOthers
	}
	s := a.spent[uid]
	if s == nil {
		if a.spent == nil {
			a.spent = map[int]*allowance{}
		}
		s = &allowance{at: now}
		a.spent[uid] = s
	}
	s.bytes = max(0, s.bytes-auditBytes*now.Sub(s.at).Hours()/24)
	s.at = now
	size := float64(auditLineBytes + len(e.Text) + len(e.Command) + len(e.By) + len(e.Lease) + len(e.Tenant) + len(e.GPU))
	if s.bytes+size > auditBytes {
		return false
	}
	s.bytes += size
	return true
}

func (a *auditor) count(e *Entry, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	uid, by := e.UID, e.By
	if a.counted[uid] == nil && len(a.counted) >= mostCounted {
		uid, by = uidOthers, "other users"
	}
	t := a.counted[uid]
	if t == nil {
		if a.counted == nil {
			a.counted = map[int]*tally{}
		}
		t = &tally{by: by, role: e.Role, since: now, kinds: map[string]uint64{}}
		a.counted[uid] = t
	}
	t.kinds[cmp.Or(e.Kind, "done")]++
	t.last = text.Short(e.What+": "+e.Text, auditTextBytes)
}

// due returns the entries of the refusals that were counted for long enough; with all those of every one.
func (a *auditor) due(now time.Time, all bool) []Entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Entry
	for _, uid := range slices.Sorted(maps.Keys(a.counted)) {
		t := a.counted[uid]
		e := t.entry(uid)
		if age := now.Sub(t.since); !all && (age < countInterval || !a.takeLocked(&e, now) && age < longestCount) {
			continue
		}
		delete(a.counted, uid)
		out = append(out, e)
	}
	return out
}

func (t *tally) entry(uid int) Entry {
	e := Entry{By: t.by, UID: uid, Role: t.role, What: "errors"}
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(t.kinds)) {
		e.Count += t.kinds[kind]
		if kind != "done" {
			e.Kind = kind
		}
		words = append(words, fmt.Sprintf("%s %d", kind, t.kinds[kind]))
	}
	e.Text = fmt.Sprintf("since %s: %s; the last: %s", t.since.UTC().Format(time.TimeOnly), strings.Join(words, ", "), t.last)
	return e
}

// CountedNow writes the counted refusals that are due; with all every one.
func (r *Reporter) CountedNow(all bool) {
	for _, e := range r.auditor.due(r.Now(), all) {
		r.append(e)
	}
}

// reportLost makes lost entries a condition. It stays until the daemon ends, because they stay lost.
func (r *Reporter) reportLost() {
	if r.Audits == nil {
		return
	}
	lost := r.Audits.Lost()
	r.auditor.mu.Lock()
	news := lost != r.auditor.seen
	r.auditor.seen = lost
	r.auditor.mu.Unlock()
	if news {
		r.Conditions.Set(
			"audit",
			"lost",
			fmt.Sprintf(
				"entries of the audit that were lost since the daemon started, or when it ended before, because they could not be written: %d",
				lost,
			),
			"free space in the state directory; the journal has them: 'journalctl -u gpushared'",
		)
		r.Invalidate()
	}
}

// AuditLost is called after an entry was lost. It does not block.
func (r *Reporter) AuditLost() {
	select {
	case r.lost <- struct{}{}:
	default: // RunAudit has not handled the last loss yet.
	}
}

// AuditFilter selects entries. An empty field selects all.
type AuditFilter struct {
	Since, Until time.Time
	User         string // a name or a uid
	Tenant       string
}

func (f *AuditFilter) matches(e *Entry) bool {
	return !e.At.Before(f.Since) && (f.Until.IsZero() || e.At.Before(f.Until)) &&
		(f.User == "" || f.User == e.By || f.User == fmt.Sprint(e.UID)) && (f.Tenant == "" || f.Tenant == e.Tenant)
}

var errNoAudit = errors.New("there is no audit")

// ReadAudit calls each with the entries, the oldest first, until it returns false.
func (r *Reporter) ReadAudit(ctx context.Context, dir string, f AuditFilter, each func(api.AuditLine) bool) error {
	end, err := r.auditEnd(ctx)
	if err != nil {
		return err
	}
	lost := uint64(0)
	_, err = ledger.Read(dir, AuditName, end, func(l *ledger.Line) bool {
		lost += l.Lost
		e, ok := l.Audit()
		if !ok || !f.matches(&e) {
			return ctx.Err() == nil
		}
		more := each(api.AuditLine{
			Number:     l.Number,
			At:         e.At,
			By:         e.By,
			UID:        e.UID,
			PID:        e.PID,
			LoginUID:   e.LoginUID,
			Session:    e.Session,
			Role:       e.Role,
			What:       e.What,
			Kind:       api.Kind(e.Kind),
			Count:      e.Count,
			Generation: e.Generation,
			GPU:        e.GPU,
			Tenant:     e.Tenant,
			Lease:      e.Lease,
			Message:    e.Text,
			Command:    e.Command,
			Lost:       lost,
		})
		lost = 0
		return more && ctx.Err() == nil
	})
	return cmp.Or(err, ctx.Err())
}

// AuditName is the name of the audit ledger.
const AuditName = "audit"

func (r *Reporter) auditEnd(ctx context.Context) (ledger.End, error) {
	if r.Audits == nil {
		return ledger.End{}, errNoAudit
	}
	r.CountedNow(false)
	return r.Audits.Flush(ctx)
}
