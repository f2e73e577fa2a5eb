package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// anchor is what is known of a chain outside of its files. It is written again after each line, without waiting for the disk: a kill
// of the daemon loses nothing of it. What it says of the disk was synced before.
type anchor struct {
	Sequence uint64 `json:"sequence"` // of two records in the file the one with the higher number is in force
	Last     Point  `json:"last"`     // the newest line
	File     uint64 `json:"file"`     // the number of the file that has it
	Synced   uint64 `json:"synced"`   // the newest line that is on the disk, whatever happens to the host
	Removed  Point  `json:"removed"`  // the last line of the files that the bound has removed
	Oldest   uint64 `json:"oldest"`   // the number of the oldest file that it has not removed
	Since    uint64 `json:"since"`    // the newest line when the first anchor was written
	Boot     string `json:"boot"`     // the kernel's boot id
	Closed   bool   `json:"closed"`   // the daemon ended, and all lines were on the disk
	// Crash: the lines after Synced are missing, may have been lost with the power of the host, and none was written since then.
	Crash bool `json:"crash,omitempty"`
	// Lost is how many entries were lost after Last, and are counted in no line yet: a full disk takes no line, and still this file.
	Lost uint64 `json:"lost,omitempty"`
}

// slotSize is the size of each of the two records in the file of an anchor. The older one stays while the other is written.
const slotSize = 1024

// anchorFile is the open file of an anchor.
type anchorFile struct {
	path   string
	f      *os.File
	opened bool // it may be new, and its name not be on the disk yet
}

// readAnchor returns the anchor in force. ok is false if there is none that is undamaged.
func readAnchor(path string) (a anchor, ok bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return a, false, nil
	}
	if err != nil {
		return a, false, err
	}
	defer f.Close()
	b := make([]byte, 2*slotSize)
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return a, false, err
	}
	for slot := range slices.Chunk(b[:n], slotSize) {
		value, whole := check(bytes.TrimRight(slot, " \n"))
		var read anchor
		if whole && json.Unmarshal(value, &read) == nil && (!ok || read.Sequence > a.Sequence) {
			a, ok = read, true
		}
	}
	return a, ok, nil
}

// write writes the anchor; with sync it is on the disk afterwards.
func (x *anchorFile) write(a *anchor, sync bool) error {
	b, err := encode(a)
	if err != nil {
		return err
	}
	if len(b) > slotSize {
		return fmt.Errorf("the anchor has %d bytes, more than %d", len(b), slotSize)
	}
	b = append(bytes.TrimSuffix(b, []byte("\n")), bytes.Repeat([]byte(" "), slotSize-len(b)+1)...)
	b[slotSize-1] = '\n'
	if x.f == nil {
		x.f, err = os.OpenFile(x.path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return err
		}
		x.opened = true
	}
	if _, err := x.f.WriteAt(b, int64(a.Sequence%2)*slotSize); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	if err := x.f.Sync(); err != nil || !x.opened {
		return err
	}
	x.opened = false
	return syncDir(filepath.Dir(x.path))
}

// isThere reports whether the open file still has its name.
func (x *anchorFile) isThere() bool {
	return x.f == nil || sameFile(x.f, x.path)
}

func (x *anchorFile) close() error {
	if x.f == nil {
		return nil
	}
	err := x.f.Close()
	x.f = nil
	return err
}

// sameFile reports whether a name is that of an open file.
func sameFile(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}

// mayHaveLost reports whether a loss of power may explain that a line is the newest: after a kill of the daemon alone the files are
// complete, and what was synced is never lost. What an earlier start found lost stays explained until a line was written.
func (a *anchor) mayHaveLost(newest uint64, boot string) bool {
	return newest >= a.Synced && (a.Crash || !a.Closed && (boot == "" || a.Boot != boot))
}

// know adds a line that is known from elsewhere and was on the disk.
func (a *anchor) know(m Point) {
	if m.Number > a.Last.Number {
		a.Last = m
	} else if a.Crash {
		return // It may be one of the lines that were lost.
	}
	a.Synced = max(a.Synced, m.Number)
}
