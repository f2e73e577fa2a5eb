package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Line is one entry with its place in the chain: each line has the SHA-256 of the one before it, also of one in the file before. A
// line that is changed, removed or added later is found by the next one. Who may write the files can write the rest of the chain
// again: only a hash that is kept elsewhere shows that.
type Line struct {
	Number   uint64 `json:"number"`         // from 1, without gaps
	Previous string `json:"previous"`       // the hash of the line before it; empty for the first
	Lost     uint64 `json:"lost,omitempty"` // entries that were lost between that line and this one
	Torn     uint64 `json:"torn,omitempty"` // incomplete lines that were ended before this one
	// Crash: the lines that are missing before this one may have been lost when the host lost its power.
	Crash bool            `json:"crash,omitempty"`
	Kept  uint64          `json:"kept,omitempty"` // with Crash: the newest line that was on the disk then
	Entry json.RawMessage `json:"entry"`
}

// Point is a line of a chain that is known outside of its files.
type Point struct {
	Number uint64    `json:"number"`
	Hash   string    `json:"sha256"`
	At     time.Time `json:"at,omitzero"` // of its entry
}

// timeOf is when an entry was made.
func timeOf(entry json.RawMessage) time.Time {
	var e struct {
		At time.Time `json:"at"`
	}
	_ = json.Unmarshal(entry, &e) // An entry without a time has none.
	return e.At
}

func hashOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// decode returns a line without its newline, and its point without the time. ok is false if the line is damaged or was written
// without a chain.
func decode(raw []byte) (m Point, l Line, ok bool) {
	value, ok := check(raw)
	if !ok || json.Unmarshal(value, &l) != nil || l.Number == 0 {
		return m, l, false
	}
	return Point{Number: l.Number, Hash: hashOf(raw)}, l, true
}

// isOlder reports whether an undamaged line was written without a chain.
func isOlder(raw []byte) bool {
	_, ok := check(raw)
	return ok
}

// Read calls each with the lines up to an end, the oldest first, until each returns false. It skips damaged lines and counts them.
func Read(dir, name string, end End, each func(*Line) bool) (skipped int, err error) {
	err = walk(dir, name, end, func(_ uint64, _ int, raw []byte, whole bool) bool {
		_, l, ok := decode(raw)
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
func walk(dir, name string, end End, each func(file uint64, line int, raw []byte, whole bool) bool) error {
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
			more = each(n, line, raw, whole)
			return more
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) { // The writer may have removed it meanwhile.
			return err
		}
	}
	return nil
}
