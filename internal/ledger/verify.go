package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Verification is what Verify found.
type Verification struct {
	Lines    uint64    // in the chain
	First    uint64    // the number of the oldest line; older ones were removed with their files
	Last     uint64    // the number of the newest
	Head     string    // the hash of the newest line
	Lost     uint64    // entries that were never written
	Torn     uint64    // lines that a kill or a power cut left without their end: no line of the chain
	Older    uint64    // lines of a version without a chain, before its begin
	Anchored bool      // the last line was known outside of the files
	Since    uint64    // lines before this one may have been cut off at the begin before any was known; 0: none
	Findings []Finding // what is wrong, the oldest first, at most mostFindings
	More     uint64    // findings that are not in the list
	Broken   *Finding  // the first; nil: nothing is wrong
}

// mostFindings is how many findings are listed.
const mostFindings = 100

// Finding is one place where the chain is not as it was written.
type Finding struct {
	File        string // empty: no file that is there
	Line        int    // from 1; 0: the whole file
	First, Last uint64 // the lines that are missing; 0: none
	// After and Before are when the lines around it were written: the missing ones were between them. Zero: there is no such line.
	After, Before time.Time
	Reason        string
	Crash         bool // the lines may have been lost when the host lost its power
}

// verifier follows a chain.
type verifier struct {
	dir, name string
	end       End
	v         Verification
	points    map[uint64]string // the hashes of lines that are known outside of the files, by their numbers

	at      Point // the line that the next one must follow
	started bool  // a line of the chain was read
	entry   json.RawMessage
	file    uint64 // of that line
	damaged *place // the first damaged line with an end since then
	count   uint64 // of these
}

// place is a line of a file.
type place struct {
	file uint64
	line int
}

// Verify follows the chain up to an end: Ledger.End while the ledger is written, AtRest else. It also looks for points that were kept
// elsewhere.
func Verify(dir, name string, end End, points ...Point) (Verification, error) {
	x := &verifier{dir: dir, name: name, end: end, points: map[uint64]string{}}
	if a := end.anchor; a != nil {
		x.v.Anchored, x.v.Since = true, a.Since
		x.at = a.Removed
		x.points[a.Last.Number] = a.Last.Hash
		if a.Removed.Number > 0 {
			x.points[a.Removed.Number] = a.Removed.Hash
		}
	}
	if end.removed {
		x.found(Finding{Reason: "the anchor was removed: lines that are missing at the begin cannot be seen"})
	}
	for _, m := range points {
		x.add(m)
	}
	err := walk(dir, name, end, func(file uint64, line int, raw []byte, whole bool) bool {
		x.follow(place{file, line}, raw, whole)
		return true
	})
	x.finish(points)
	if x.started {
		x.v.Last, x.v.Head = x.at.Number, x.at.Hash
	}
	if len(x.v.Findings) > 0 {
		x.v.Broken = &x.v.Findings[0]
	}
	if err != nil {
		return x.v, fmt.Errorf("cannot verify the %s ledger: %w", name, err)
	}
	return x.v, nil
}

// add adds a point of elsewhere. One that contradicts the daemon's own is a finding.
func (x *verifier) add(m Point) {
	if own, ok := x.points[m.Number]; ok && own != m.Hash {
		x.found(Finding{
			Reason: fmt.Sprintf(
				"line %d had the hash %s, and gpushared knows another one: the lines were written again", m.Number, m.Hash,
			),
		})
		return
	}
	x.points[m.Number] = m.Hash
}

func (x *verifier) found(f Finding) {
	if len(x.v.Findings) >= mostFindings {
		x.v.More++
		return
	}
	x.v.Findings = append(x.v.Findings, f)
}

func (x *verifier) fileName(n uint64) string { return filepath.Base(path(x.dir, x.name, n)) }

// at is a finding at a line.
func (x *verifier) finding(p place, reason string) Finding {
	return Finding{File: x.fileName(p.file), Line: p.line, After: timeOf(x.entry), Reason: reason}
}

// follow takes the next line.
func (x *verifier) follow(p place, raw []byte, whole bool) {
	next, l, ok := decode(raw)
	if !whole {
		x.v.Torn++
		if !ok { // Its checksum is right if only its end is missing.
			return
		}
	}
	switch {
	case !ok && !isOlder(raw):
		if x.damaged == nil {
			x.damaged = &p
		}
		x.count++
		return
	case !ok && !x.started && !x.numbered():
		x.v.Older++
		return
	case !ok:
		x.found(x.finding(p, "it has no number: it was added"))
		return
	}
	if !x.compare(p, next, l) {
		return // An added line: the chain goes on from the one before it.
	}
	x.checkPoint(p, next)
	if !x.started {
		x.v.First = l.Number
	}
	x.v.Lines++
	x.v.Lost += l.Lost
	x.at, x.entry, x.file, x.started, x.damaged, x.count = next, l.Entry, p.file, true, nil, 0
}

// beginKnown reports whether it is known which lines the bound has removed.
func (x *verifier) beginKnown() bool { return x.end.anchor != nil && !x.end.removed }

// numbered reports whether lines with numbers were removed with their files: then there are none without before the first.
func (x *verifier) numbered() bool { return x.at.Number > 0 }

// compare reports whether the chain goes on from a line. What does not fit is a finding.
func (x *verifier) compare(p place, next Point, l Line) bool {
	switch {
	case x.follows(next, l):
		if x.count > l.Torn && x.beginKnown() && l.Number > x.end.anchor.Since {
			x.found(x.finding(*x.damaged, "its checksum is wrong, and no line is missing: it was added"))
		} else {
			x.v.Torn += x.count // A daemon that started after a kill ended them.
		}
		return true
	case !x.started && !x.beginKnown():
		x.begin(p, l)
		return true
	case x.explained(l) && l.Number > x.at.Number+1:
		x.v.Torn += x.count
		x.found(x.gap(p, l))
		return true
	case x.damaged != nil && l.Number == x.at.Number+1+x.count:
		f := x.finding(*x.damaged, "it was changed: its checksum is wrong, and the next line follows what it was")
		f.First, f.Last, f.Before = x.at.Number+1, l.Number-1, timeOf(l.Entry)
		x.found(f)
		return true
	case x.damaged != nil && l.Number == x.at.Number+1:
		x.found(x.finding(*x.damaged, "it was changed: its checksum is wrong, and the next line follows what it was"))
		return true
	case l.Number > x.at.Number+1:
		x.found(x.gap(p, l))
		return true
	case l.Number <= x.at.Number:
		x.found(x.finding(p, fmt.Sprintf("it has number %d and follows number %d: it was added, or moved", l.Number, x.at.Number)))
		return false
	}
	x.found(x.finding(p, "it does not follow the line before it, which was changed"))
	return true
}

// explained reports whether a loss of power explains that lines are missing before one: none of those that were on the disk then is
// missing, and the damaged lines are those that it cut off.
func (x *verifier) explained(l Line) bool {
	return l.Crash && x.at.Number >= l.Kept && x.count <= l.Torn
}

// follows reports whether a line is the next one of the chain.
func (x *verifier) follows(next Point, l Line) bool {
	if !x.started && !x.beginKnown() {
		return x.damaged == nil && (l.Number == 1) == (l.Previous == "")
	}
	if !x.started && l.Number <= x.end.anchor.Removed.Number { // The oldest file is being removed.
		return x.damaged == nil
	}
	return l.Number == x.at.Number+1 && l.Previous == x.at.Hash
}

// begin is a first line that cannot be one; nothing is known outside of the files.
func (x *verifier) begin(p place, l Line) {
	switch {
	case x.damaged != nil && l.Number == 1 && l.Previous == "":
		x.v.Torn += x.count // as a daemon that was killed while it wrote its first line left it
	case x.damaged != nil && l.Number > x.count:
		x.found(x.finding(*x.damaged, "it was changed: its checksum is wrong"))
	default:
		x.found(x.finding(p, "it cannot be the first line"))
	}
}

// gap is a finding about lines that are missing before one.
func (x *verifier) gap(p place, l Line) Finding {
	reason := fmt.Sprintf("it has number %d and follows number %d: the lines between them were removed", l.Number, x.at.Number)
	if !x.started {
		reason = fmt.Sprintf("it has number %d and is the first line: the lines before it were removed", l.Number)
	}
	f := x.finding(p, reason)
	f.First, f.Last, f.Before, f.Crash = x.at.Number+1, l.Number-1, timeOf(l.Entry), x.explained(l)
	switch {
	case f.Crash:
		f.Reason = fmt.Sprintf(
			"it has number %d and follows number %d: the lines between them may have been lost with the power of the host, before they were on the disk",
			l.Number,
			x.at.Number,
		)
	case x.damaged != nil:
		damaged := x.finding(*x.damaged, "it was changed: its checksum is wrong; lines after it were removed")
		f.File, f.Line, f.Reason = damaged.File, damaged.Line, damaged.Reason
	default:
		f.Reason += x.absent(x.file, p.file)
	}
	return f
}

// absent names the files between two that are missing or have no line.
func (x *verifier) absent(after, before uint64) string {
	var missing, empty []string
	first := after + 1
	if !x.started {
		if !x.beginKnown() {
			return ""
		}
		first = x.end.anchor.Oldest
	}
	for n := first; n < before && len(missing)+len(empty) < mostFindings; n++ {
		switch info, err := os.Lstat(path(x.dir, x.name, n)); {
		case errors.Is(err, os.ErrNotExist):
			missing = append(missing, x.fileName(n))
		case err == nil && info.Size() == 0:
			empty = append(empty, x.fileName(n))
		}
	}
	out := ""
	if len(missing) > 0 {
		out += "; missing: " + strings.Join(missing, ", ")
	}
	if len(empty) > 0 {
		out += "; empty: " + strings.Join(empty, ", ")
	}
	return out
}

// checkPoint compares a line with what is known of it outside of the files.
func (x *verifier) checkPoint(p place, m Point) {
	if hash, ok := x.points[m.Number]; ok && hash != m.Hash {
		f := x.finding(p, fmt.Sprintf("line %d is not the one that was written: a hash that was kept of it differs", m.Number))
		if n := len(x.v.Findings); n == 0 || x.v.Findings[n-1].File != f.File || x.v.Findings[n-1].Line != f.Line {
			x.found(f)
		}
	}
}

// finish compares the end of the files with what is known of it.
func (x *verifier) finish(points []Point) {
	a := x.end.anchor
	switch {
	case a != nil && x.at.Number < a.Last.Number:
		x.found(x.cut(a))
	case x.damaged != nil:
		x.found(x.finding(*x.damaged, "its checksum is wrong: it was changed, or added"))
	}
	last := x.at.Number
	if a != nil {
		last = max(last, a.Last.Number)
	}
	for _, m := range points {
		switch {
		case m.Number > last:
			x.found(Finding{
				First:  last + 1,
				Last:   m.Number,
				After:  timeOf(x.entry),
				Before: m.At,
				Reason: fmt.Sprintf(
					"line %d was written, and the last that is there is number %d: the lines after it were removed", m.Number, last,
				),
			})
		case x.v.First > 0 && m.Number < x.v.First && (a == nil || m.Number != a.Removed.Number):
			x.found(Finding{Reason: fmt.Sprintf("line %d cannot be compared: the oldest that is there is number %d", m.Number, x.v.First)})
		}
	}
}

// cut is a finding about lines that are missing at the end.
func (x *verifier) cut(a *anchor) Finding {
	f := Finding{First: x.at.Number + 1, Last: a.Last.Number, After: timeOf(x.entry), Before: a.Last.At}
	f.Crash = x.damaged == nil && (a.Crash || !x.end.written) && a.mayHaveLost(x.at.Number, x.end.boot)
	switch {
	case x.damaged != nil:
		at := x.finding(*x.damaged, "it was changed: its checksum is wrong")
		f.File, f.Line, f.Reason = at.File, at.Line, at.Reason
		if x.count < f.Last-f.First+1 {
			f.Reason += ", and the lines after it were removed"
		}
		return f
	case !x.started:
		f.Reason = "no line is there"
	default:
		f.File = x.fileName(x.file)
		f.Reason = fmt.Sprintf("the last line is number %d, and number %d was written", x.at.Number, a.Last.Number)
	}
	if f.Crash {
		f.Reason += ": the lines after it may have been lost with the power of the host, before they were on the disk"
	} else {
		f.Reason += ": the lines after it were removed" + x.absent(x.file, a.File+1)
	}
	return f
}
