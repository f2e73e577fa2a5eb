package ledger

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// found is what the files have of a chain.
type found struct {
	first    Line  // the oldest line; number 0: there is none
	last     Point // the newest
	lastFile uint64
	known    string // the hash of a line that was looked for; empty: it is not there
}

// lastOf returns the last line of a file that belongs to a chain.
func lastOf(path string) (last Point, err error) {
	err = eachLine(path, -1, func(raw []byte, _ bool) bool {
		if m, l, ok := decode(raw); ok {
			m.At = timeOf(l.Entry)
			last = m
		}
		return true
	})
	return last, err
}

// search reads what is there: the first line, the last one, and the hash of the line with a number. It reads the newest files until
// it has found it.
func (l *Ledger) search(have []uint64, number uint64) (x found, err error) {
	for i := len(have) - 1; i >= 0; i-- {
		begin := uint64(0)
		var last Point
		err := eachLine(l.path(have[i]), -1, func(raw []byte, _ bool) bool {
			m, line, ok := decode(raw)
			if !ok {
				return true
			}
			if begin == 0 {
				begin = line.Number
				if line.Number == number+1 && x.known == "" {
					x.known = line.Previous
				}
			}
			if line.Number == number {
				x.known = m.Hash
			}
			m.At = timeOf(line.Entry)
			last = m
			return true
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return x, err
		}
		if x.last.Number == 0 && last.Number > 0 {
			x.last, x.lastFile = last, have[i]
		}
		if begin > 0 && begin <= number || x.last.Number > 0 && number == 0 {
			break
		}
	}
	for _, n := range have {
		err := eachLine(l.path(n), -1, func(raw []byte, _ bool) bool {
			_, x.first, _ = decode(raw)
			return x.first.Number == 0
		})
		if x.first.Number > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
			return x, err
		}
	}
	return x, nil
}

// resume decides where the chain goes on: after the last line that was written, also if it is missing.
func (l *Ledger) resume(have []uint64) error {
	was, ok := anchor{}, false
	if l.o.Anchor != "" {
		var err error
		if was, ok, err = readAnchor(l.o.Anchor); err != nil {
			l.damage(fmt.Sprintf("the anchor of the %s cannot be read: %v", l.name, err))
		}
	}
	lost := !ok && l.o.Known.Number > 0
	was.know(l.o.Known)
	there, err := l.search(have, was.Last.Number)
	if err != nil {
		return err
	}
	l.anchor = was
	if !ok { // A version without anchors wrote the lines, or the anchor was removed.
		l.anchor = anchor{Last: was.Last, Since: there.last.Number}
		if there.first.Number > 0 {
			l.anchor.Removed = Point{Number: there.first.Number - 1, Hash: there.first.Previous}
		}
	}
	if !ok {
		l.anchor.Oldest = 1
		if len(have) > 0 {
			l.anchor.Oldest = have[0]
		}
	}
	if lost {
		l.damage(
			fmt.Sprintf(
				"the anchor of the %s was removed: lines before number %d may be missing unnoticed at the begin", l.name,
				there.first.Number,
			),
		)
	}
	if there.last.Number <= was.Last.Number { // A later line has counted them.
		l.lost.Store(was.Lost)
	}
	l.goOn(was, there)
	for _, n := range have {
		if info, err := os.Lstat(l.path(n)); err == nil {
			l.sizes[n] = info.Size()
		}
	}
	if len(have) == 0 && l.anchor.File > 0 || len(have) > 0 && l.anchor.File > l.number {
		l.number = l.anchor.File + 1 // A file that was removed is not begun again: its absence stays visible.
	}
	l.anchor.Boot, l.anchor.Closed = l.o.Boot, false
	l.unsynced = l.anchor.Last.Number > 0
	l.earlier = have
	l.sync(false)
	return nil
}

// syncEarlier waits until the files of an earlier process are on the disk: that one may have been killed before it did so.
func (l *Ledger) syncEarlier() error {
	for _, n := range l.earlier {
		f, err := os.OpenFile(l.path(n), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // It was the oldest one.
		}
		if err != nil {
			return fmt.Errorf("cannot open %s: %w", l.path(n), err)
		}
		err = f.Sync()
		f.Close()
		if err != nil {
			return fmt.Errorf("cannot sync %s: %w", l.path(n), err)
		}
	}
	l.earlier = nil
	return nil
}

// goOn compares the last line that is known with those that are there.
func (l *Ledger) goOn(was anchor, there found) {
	known := was.Last
	l.anchor.Crash = false
	switch {
	case there.last.Number < known.Number:
		missing := fmt.Sprintf("lines %d to %d of the %s are missing", there.last.Number+1, known.Number, l.name)
		if there.last.Number == 0 && l.anchor.Removed.Number > 0 {
			missing = fmt.Sprintf("all lines up to number %d of the %s are missing", known.Number, l.name)
		}
		l.crash = was.mayHaveLost(there.last.Number, l.o.Boot)
		l.anchor.Crash = l.crash
		if l.crash {
			l.kept = there.last.Number
			l.anchor.Synced = l.kept
			missing += ", and may have been lost with the power of the host, before they were on the disk"
		} else {
			missing += ": they were removed while gpushared did not run"
		}
		l.damage(fmt.Sprintf("%s; it goes on after number %d", missing, known.Number))
	case known.Number > 0 && there.known != known.Hash:
		l.damage(
			fmt.Sprintf(
				"line %d of the %s is not the one that gpushared wrote: it was changed while gpushared did not run", known.Number,
				l.name,
			),
		)
		// The next line follows the one that was written, so that the place stays visible.
		l.anchor.Last.Number, l.anchor.File = there.last.Number, there.lastFile
	default:
		l.anchor.Last, l.anchor.File = there.last, there.lastFile
	}
}
