package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func (l *Ledger) damage(text string) {
	if l.o.OnDamage != nil {
		l.o.OnDamage(text)
	}
}

// inspect compares the open file with what was written to it. If another process has removed, replaced or changed it, the chain
// goes on in the next file.
func (l *Ledger) inspect() {
	if l.file == nil {
		return
	}
	what := ""
	info, err := l.file.Stat()
	switch {
	case err != nil:
		return // The write says why.
	case info.Size() < l.size:
		what = fmt.Sprintf("was cut off from %d to %d bytes", l.size, info.Size())
	case info.Size() > l.size:
		what = fmt.Sprintf("was written to by another process: it has %d bytes more", info.Size()-l.size)
	case !sameFile(l.file, l.path(l.number)):
		what = "was removed"
		if _, err := os.Lstat(l.path(l.number)); err == nil {
			what = "was replaced by another file"
		}
		l.removals.Add(1)
	default:
		return
	}
	l.damage(fmt.Sprintf("%s %s while gpushared ran", filepath.Base(l.path(l.number)), what))
	l.closeFile()
	delete(l.sizes, l.number) // It was reported.
	l.number++
}

// inspectAll compares all files and the anchor.
func (l *Ledger) inspectAll() {
	l.inspect()
	for n, size := range l.sizes {
		info, err := os.Lstat(l.path(n))
		switch {
		case errors.Is(err, os.ErrNotExist):
			l.damage(filepath.Base(l.path(n)) + " was removed while gpushared ran")
			delete(l.sizes, n)
		case err == nil && info.Size() != size:
			l.damage(
				fmt.Sprintf("%s was changed while gpushared ran: it had %d bytes and has %d", filepath.Base(l.path(n)), size, info.Size()),
			)
			l.sizes[n] = info.Size()
		}
	}
	if !l.anchored.isThere() {
		l.damage("the anchor of the " + l.name + " was removed while gpushared ran")
		_ = l.anchored.close() // It is written again below.
		l.unsynced = true
	}
}

// sync waits until all lines are on the disk, and the anchor that says so. With closed it also says that the daemon ended.
func (l *Ledger) sync(closed bool) {
	if !l.unsynced && (!closed || l.anchor.Last.Number == 0) {
		return
	}
	err := l.syncEarlier()
	if l.file != nil {
		err = errors.Join(err, l.file.Sync())
	}
	if err != nil {
		l.anchorFailed(err)
		return
	}
	l.anchor.Closed = closed
	if !l.anchor.Crash { // Its newest lines were lost.
		l.anchor.Synced = l.anchor.Last.Number
	}
	l.unsynced = !l.saveAnchor(true)
}

// saveAnchor writes the anchor, and reports whether it did.
func (l *Ledger) saveAnchor(sync bool) bool {
	if l.o.Anchor == "" {
		return true
	}
	l.anchor.Sequence++
	l.anchor.Lost = l.lost.Load() - l.reported
	if err := l.anchored.write(&l.anchor, sync); err != nil {
		l.anchorFailed(err)
		return false
	}
	l.failing = false
	return true
}

// anchorFailed reports that the anchor cannot be written, once. The lines are written.
func (l *Ledger) anchorFailed(err error) {
	if !l.failing {
		l.damage(fmt.Sprintf("the anchor of the %s cannot be written: %v", l.name, err))
	}
	l.failing = true
}
