package leases

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// Ended leases are kept up to these numbers and for this time, and no longer than until the next boot. If there are too many
// together, the oldest one of the user with the most goes: no user pushes out what another one has.
const (
	maxEndedPerUser = 200
	maxEnded        = 500
	endedRetention  = 24 * time.Hour
)

// endedLease is a lease that has ended.
type endedLease struct {
	Lease  lease.Lease    `json:"lease"`
	At     time.Time      `json:"at"`
	Result *launch.Result `json:"result,omitempty"`

	encoded []byte // its JSON: it does not change any more, and is written again with those that end after it
}

func (e *endedLease) wire() api.Lease {
	w := e.Lease.Wire()
	w.State, w.Ended = api.LeaseEnded, &e.At
	if e.Result != nil {
		w.Result, w.ExitCode = e.Result.String(), new(e.Result.ExitCode())
	}
	return w
}

// endedLeases are the leases that have ended, oldest first. The zero value is ready to use.
type endedLeases struct {
	files locks.Mutex[locks.EndedFiles] // held while one of the files is written; taken before mu

	mu      locks.Mutex[locks.Leaf] // guards what follows
	list    []endedLease
	results map[string]launch.Result // of leases that are about to end
	changed bool                     // since the last encode
	written int                      // how many, from the beginning of the list, are in the file of all
	rewrite bool                     // one of these has changed
	dropped loop.Wake                // see whenDropped
}

// whenDropped is set when output may have to be removed: a lease has ended, or an entry is not kept any more.
func (e *endedLeases) whenDropped() loop.Wake {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dropped == (loop.Wake{}) {
		e.dropped = loop.NewWake()
	}
	return e.dropped
}

// result records the result of a lease's command, for the time when the lease ends.
func (e *endedLeases) result(id string, r launch.Result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.results == nil {
		e.results = map[string]launch.Result{}
	}
	e.results[id] = r
}

// Add records a lease that has ended. A lease that never ran is not recorded.
func (e *endedLeases) Add(l lease.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := endedLease{Lease: l, At: time.Now()}
	if r, ok := e.results[l.ID]; ok {
		x.Result = &r
		delete(e.results, l.ID)
	}
	if l.Started == nil {
		return
	}
	e.list = append(e.list, x)
	e.trimLocked()
	e.changed = true
	e.dropped.Set() // Its user may have too much output now.
}

// trimLocked removes what is not kept any more.
func (e *endedLeases) trimLocked() {
	old := 0
	for old < len(e.list) && time.Since(e.list[old].At) > endedRetention {
		old++
	}
	kept := len(e.list)
	e.deleteLocked(0, old)
	counts := map[int]int{}
	for i := range e.list {
		counts[e.list[i].Lease.UID]++
	}
	for {
		most, n := 0, 0
		for uid, count := range counts {
			if count > n || count == n && uid < most {
				most, n = uid, count
			}
		}
		if n <= maxEndedPerUser && len(e.list) <= maxEnded {
			break
		}
		oldest := slices.IndexFunc(e.list, func(x endedLease) bool { return x.Lease.UID == most })
		e.deleteLocked(oldest, oldest+1)
		counts[most]--
	}
	if len(e.list) < kept {
		e.dropped.Set()
	}
}

// deleteLocked removes entries. The file of all keeps them until it is written again, and they are removed once more after a restart.
func (e *endedLeases) deleteLocked(from, to int) {
	e.list = slices.Delete(e.list, from, to)
	e.written -= max(0, min(to, e.written)-from)
}

// note adds a line to the last one of this id, and reports whether there is one.
func (e *endedLeases) note(id, line string) bool {
	return e.revise(id, func(l *lease.Lease) bool { l.Note(line); return true })
}

// revise changes the last one of this id with f, and reports whether f did.
func (e *endedLeases) revise(id string, f func(*lease.Lease) bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range slices.Backward(e.list) {
		if x := &e.list[i]; x.Lease.ID == id {
			if !f(&x.Lease) {
				return false
			}
			x.encoded, e.changed = nil, true
			e.rewrite = e.rewrite || i < e.written
			return true
		}
	}
	return false
}

// all returns the ended leases, the last first.
func (e *endedLeases) all() []endedLease {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trimLocked()
	out := slices.Clone(e.list)
	slices.Reverse(out)
	return out
}

// output is what the output of an ended lease is known by.
type output struct {
	id  string
	uid int
}

// outputs returns those of detached leases, the last first.
func (e *endedLeases) outputs() (list []output) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trimLocked()
	for i := range slices.Backward(e.list) {
		if l := &e.list[i].Lease; l.Origin == lease.OriginDetached {
			list = append(list, output{l.ID, l.UID})
		}
	}
	return list
}

// get returns the last one of this id.
func (e *endedLeases) get(id string) (endedLease, bool) {
	return e.find(func(l *lease.Lease) bool { return l.ID == id })
}

// find returns the last one for which the function is true.
func (e *endedLeases) find(is func(l *lease.Lease) bool) (endedLease, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trimLocked()
	for i := len(e.list) - 1; i >= 0; i-- {
		if is(&e.list[i].Lease) {
			return e.list[i], true
		}
	}
	return endedLease{}, false
}

// The files of ended leases: all, and those that ended since all were written. Each start of a lease waits for the end of one before it
// to be recorded, and all of them are hundreds of kilobytes.
const (
	endedFile     = "ended.json"
	lastEndedFile = "ended-last.json"
	maxLastEnded  = 32
)

// encode returns the JSON to keep until the next boot, in parts, and in which file; nil if nothing changed. The parts do not change any
// more: putting those of hundreds of leases together each time one ends made most of the daemon's garbage.
func (e *endedLeases) encode() (file string, parts [][]byte, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.changed {
		return "", nil, nil
	}
	e.changed, file = false, lastEndedFile
	if e.rewrite || len(e.list)-e.written > maxLastEnded {
		e.rewrite, e.written, file = false, 0, endedFile
	}
	list := e.list[e.written:]
	parts = append(make([][]byte, 0, 2*len(list)+2), []byte("["))
	for i := range list {
		x := &list[i]
		if x.encoded == nil {
			if x.encoded, err = json.Marshal(x); err != nil {
				return "", nil, err
			}
		}
		if i > 0 {
			parts = append(parts, comma)
		}
		parts = append(parts, x.encoded)
	}
	if file == endedFile {
		e.written = len(e.list)
	}
	return file, append(parts, []byte("]")), nil
}

var comma = []byte(",")

// Result returns how the command of a lease that has ended did, if that is known.
func (ls *Leases) Result(l *lease.Lease) (text string, exitCode *int) {
	if e, ok := ls.Ended.get(l.ID); ok && e.Lease.Generation == l.Generation && e.Result != nil {
		return e.Result.String(), new(e.Result.ExitCode())
	}
	return "", nil
}

// restoreEnded reads what the previous run wrote. One that is in both files is the one in that of all.
func (ls *Leases) restoreEnded() error {
	all, err := ls.readEnded(endedFile)
	last, lastErr := ls.readEnded(lastEndedFile)
	type key struct {
		id         string
		generation uint64
	}
	known := map[key]bool{}
	for i := range all {
		known[key{all[i].Lease.ID, all[i].Lease.Generation}] = true
	}
	e := &ls.Ended
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = all
	for i := range last {
		if l := &last[i].Lease; !known[key{l.ID, l.Generation}] {
			e.list = append(e.list, last[i])
		}
	}
	slices.SortStableFunc(e.list, func(a, b endedLease) int { return a.At.Compare(b.At) })
	e.rewrite = true // the next time
	return errors.Join(err, lastErr)
}

func (ls *Leases) readEnded(file string) (list []endedLease, _ error) {
	b, damage, err := ls.RunDir.Read(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err = cmp.Or(err, damage.Err()); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("cannot read the ended leases: %w", err)
	}
	return list, nil
}

// saveEnded writes them, to be kept until the next boot.
func (ls *Leases) saveEnded() {
	ls.Ended.files.Lock()
	defer ls.Ended.files.Unlock()
	file, parts, err := ls.Ended.encode()
	if err == nil && parts != nil {
		err = ls.RunDir.Write(file, parts...)
	}
	if err == nil && file == endedFile {
		err = ls.RunDir.Write(lastEndedFile, []byte("[]"))
	}
	if err != nil {
		ls.Ended.again()
		ls.Log.Warn("cannot write the ended leases", "error", err)
	}
}

// HasEnded reports whether a user has a lease that has ended and is kept.
func (ls *Leases) HasEnded(uid int) bool {
	_, ok := ls.Ended.find(func(l *lease.Lease) bool { return l.UID == uid })
	return ok
}

// EndedLeases returns the ended leases, the last first.
func (ls *Leases) EndedLeases() []api.Lease {
	var out []api.Lease
	for _, e := range ls.Ended.all() {
		out = append(out, e.wire())
	}
	return out
}
