package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Line is one entry with its place in the chain: each line has the SHA-256 of the one before it, also of one in the file before. A
// line that is changed, removed or added later is found by the next one. Who may write the files can write the rest of the chain
// again: only a hash that is kept elsewhere shows that.
type Line struct {
	Number   uint64          `json:"number"`         // from 1, without gaps
	Previous string          `json:"previous"`       // the hash of the line before it; empty for the first
	Lost     uint64          `json:"lost,omitempty"` // entries that were lost between that line and this one
	Entry    json.RawMessage `json:"entry"`
}

// head is the end of a chain.
type head struct {
	number uint64
	hash   string
}

func hashOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// follow returns the head after a line, without its newline. ok is false if the line is damaged or was written without a chain.
func (h head) follow(raw []byte) (next head, l Line, ok bool) {
	value, ok := check(raw)
	if !ok || json.Unmarshal(value, &l) != nil || l.Number == 0 {
		return h, l, false
	}
	return head{l.Number, hashOf(raw)}, l, true
}

// findHead returns the last undamaged line of the newest file that has one.
func findHead(dir, name string, have []uint64) (head, error) {
	for i := len(have) - 1; i >= 0; i-- {
		var last head
		err := eachLine(path(dir, name, have[i]), -1, func(raw []byte, _ bool) bool {
			if next, _, ok := last.follow(raw); ok {
				last = next
			}
			return true
		})
		if err != nil || last.number > 0 {
			return last, err
		}
	}
	return head{}, nil
}

// Verification is what Verify found.
type Verification struct {
	Lines  uint64  // in the chain
	First  uint64  // the number of the oldest line; older ones were removed with their files
	Last   uint64  // the number of the newest
	Head   string  // the hash of the newest line
	Lost   uint64  // entries that were never written
	Torn   uint64  // lines that a kill or a power cut left incomplete: the next line follows the one before them
	Older  uint64  // lines of a version without a chain, before its begin
	Broken *Broken // nil: every line follows the one before it
}

// Broken is the first line at which the chain is broken.
type Broken struct {
	File   string
	Line   int // from 1
	Reason string
}

// Verify follows the chain up to an end, which Ledger.End returns while the ledger is written.
func Verify(dir, name string, end End) (Verification, error) {
	var v Verification
	var at head
	var damaged *Broken // the first damaged line since the last good one
	damagedLines := uint64(0)
	err := walk(dir, name, end, func(file string, line int, raw []byte, whole bool) bool {
		here := &Broken{File: filepath.Base(file), Line: line}
		next, l, ok := at.follow(raw)
		switch {
		case !whole || !ok && !isOlder(raw):
			if damaged == nil {
				damaged = here
			}
			damagedLines++
			return true
		case !ok && at.number == 0:
			v.Older++
			return true
		case !ok:
			here.Reason = "it has no number: it was added"
			v.Broken = here
			return false
		case at.number == 0 && (l.Number == 1) != (l.Previous == ""):
			here.Reason = "it cannot be the first line"
			v.Broken = here
			return false
		case at.number > 0 && (l.Previous != at.hash || l.Number != at.number+1):
			v.Broken, damagedLines = why(here, damaged, at.number, l.Number), 0
			return false
		case at.number == 0:
			v.First = l.Number
		}
		v.Torn, damaged, damagedLines = v.Torn+damagedLines, nil, 0
		at = next
		v.Lines++
		v.Lost += l.Lost
		return true
	})
	v.Torn += damagedLines
	v.Last, v.Head = at.number, at.hash
	if err != nil {
		return v, fmt.Errorf("cannot verify the %s ledger: %w", name, err)
	}
	return v, nil
}

// isOlder reports whether an undamaged line was written without a chain.
func isOlder(raw []byte) bool {
	_, ok := check(raw)
	return ok
}

// why is the first broken line: a damaged one, else the one that does not follow.
func why(here, damaged *Broken, before, number uint64) *Broken {
	switch {
	case damaged != nil:
		damaged.Reason = "it was changed: its checksum is wrong, and the next line follows what it was"
		return damaged
	case number > before+1:
		here.Reason = fmt.Sprintf("it has number %d and follows number %d: the lines between them were removed", number, before)
	case number <= before:
		here.Reason = fmt.Sprintf("it has number %d and follows number %d: it was added, or moved", number, before)
	default:
		here.Reason = "it does not follow the line before it, which was changed"
	}
	return here
}

// Read calls each with the lines up to an end, the oldest first, until each returns false. It skips damaged lines and counts them.
func Read(dir, name string, end End, each func(*Line) bool) (skipped int, err error) {
	err = walk(dir, name, end, func(_ string, _ int, raw []byte, whole bool) bool {
		_, l, ok := head{}.follow(raw)
		if !ok && isOlder(raw) {
			value, _ := check(raw)
			l, ok = Line{Entry: value}, true
		}
		if !whole || !ok {
			skipped++
			return true
		}
		return each(&l)
	})
	if err != nil {
		return skipped, fmt.Errorf("cannot read the %s ledger: %w", name, err)
	}
	return skipped, nil
}

// walk calls each with every line of all files, until it returns false. whole is false for a line without its end.
func walk(dir, name string, end End, each func(file string, line int, raw []byte, whole bool) bool) error {
	have, err := numbers(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	more := true
	for _, n := range have {
		if !more || end.number > 0 && n > end.number {
			return nil
		}
		size := int64(-1)
		if n == end.number {
			size = end.size
		}
		line := 0
		err := eachLine(path(dir, name, n), size, func(raw []byte, whole bool) bool {
			line++
			more = each(path(dir, name, n), line, raw, whole)
			return more
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) { // The writer may have removed it meanwhile.
			return err
		}
	}
	return nil
}
