package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/faultpoint"
)

// Days is a ledger with one file for each day. Unlike Ledger it has no writer of its own: the caller waits for the disk, and
// decides what happens to entries that were not written. One process writes; any may read at the same time.
type Days struct {
	dir, name string
	last      atomic.Pointer[openFile] // the file that was written last; nil: none was yet
	removals  atomic.Uint64
}

// OpenDays opens the ledger of this name in a directory, which is created if it is missing. Only root may read it. Files that
// an interrupted Replace left are removed.
func OpenDays(dir, name string) (*Days, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot open the %s ledger: %w", name, err)
	}
	d := &Days{dir: dir, name: name}
	entries, _, err := boundedread.Entries(dir, boundedread.Files)
	if err != nil {
		return nil, fmt.Errorf("cannot open the %s ledger: %w", name, err)
	}
	for _, e := range entries {
		if day, ok := strings.CutSuffix(e.Name(), ".new"); ok {
			if _, ok := d.dayOf(day); ok {
				_ = os.Remove(filepath.Join(dir, e.Name())) // The next Replace of that day overwrites it.
			}
		}
	}
	return d, nil
}

// List returns the days that have a file, the oldest first, each as 2006-01-02.
func (d *Days) List() ([]string, error) {
	entries, _, err := boundedread.Entries(d.dir, boundedread.Files)
	if err != nil {
		return nil, fmt.Errorf("cannot read the %s ledger: %w", d.name, err)
	}
	var days []string
	for _, e := range entries {
		if day, ok := d.dayOf(e.Name()); ok {
			days = append(days, day)
		}
	}
	slices.Sort(days)
	return days, nil
}

func (d *Days) dayOf(file string) (string, bool) {
	text, ok := strings.CutPrefix(file, d.name+"-")
	if !ok {
		return "", false
	}
	text, ok = strings.CutSuffix(text, ".log")
	if !ok {
		return "", false
	}
	_, err := time.Parse(time.DateOnly, text)
	return text, err == nil
}

func (d *Days) path(day string) string { return filepath.Join(d.dir, d.name+"-"+day+".log") }

// Size returns the bytes of a day's file; 0 if there is none.
func (d *Days) Size(day string) (int64, error) {
	info, err := os.Stat(d.path(day))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("cannot read the %s ledger: %w", d.name, err)
	}
	return info.Size(), nil
}

// Append adds entries to a day's file and waits until they are on the disk. After an error none of them counts as written, and
// a part of them may be there: an entry that is appended again must mean the same.
func Append[T any](d *Days, day string, entries []T) error {
	b, err := encodeAll(entries)
	if err == nil {
		err = d.append(day, b)
	}
	if err != nil {
		return fmt.Errorf("cannot write the %s ledger: %w", d.name, err)
	}
	return nil
}

func encodeAll[T any](entries []T) ([]byte, error) {
	var b []byte
	for i := range entries {
		line, err := encode(&entries[i])
		if err != nil {
			return nil, err
		}
		b = append(b, line...)
	}
	return b, nil
}

func (d *Days) append(day string, b []byte) (err error) {
	f, err := d.open(d.path(day), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// A kill may have left half a line. The next entry must begin a new line.
	if err := terminate(d.path(day), f, info.Size()); err != nil {
		return err
	}
	faultpoint.Hit("ledger.append")
	if _, err := f.Write(b); err != nil {
		// A full disk keeps no half lines: their space is needed for the next attempt.
		return errors.Join(err, f.Truncate(info.Size()))
	}
	faultpoint.Hit("ledger.written")
	if err := f.Sync(); err != nil {
		return err
	}
	d.last.Store(&openFile{d.path(day), info})
	if info.Size() == 0 {
		return syncDir(d.dir)
	}
	return nil
}

// Read calls each with the entries of a day, in the order in which they were appended, until each returns false. It skips
// damaged lines and counts them. A missing file is no error. each must not keep the bytes.
func (d *Days) Read(day string, each func(json.RawMessage) bool) (skipped int, err error) {
	err = eachLine(d.path(day), -1, func(raw []byte, _ bool) bool {
		// An entry that lacks only its newline counts: the next Append adds that, and what was skipped before would count then too.
		value, ok := check(raw)
		if !ok {
			skipped++
			return true
		}
		return each(value)
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return skipped, fmt.Errorf("cannot read the %s ledger: %w", d.name, err)
	}
	return skipped, nil
}

// maxLine is the longest line that is read. A longer one can only be damage.
const maxLine = 64 << 10

// Replace replaces a day's file by these entries: after a crash the file has either the old entries or the new ones. Without
// entries the file is removed.
func Replace[T any](d *Days, day string, entries []T) error {
	if len(entries) == 0 {
		return d.Remove(day)
	}
	b, err := encodeAll(entries)
	if err == nil {
		err = d.replace(day, b)
	}
	if err != nil {
		return fmt.Errorf("cannot write the %s ledger: %w", d.name, err)
	}
	return nil
}

func (d *Days) replace(day string, b []byte) error {
	path := d.path(day)
	f, err := d.open(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	info, unknown := f.Stat()
	if err = errors.Join(err, unknown, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	faultpoint.Hit("ledger.replace")
	d.forget(path) // Else the rename would look like a removal to who compares meanwhile.
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	d.last.Store(&openFile{path, info})
	faultpoint.Hit("ledger.replaced")
	return syncDir(d.dir)
}

// Remove removes a day's file. A missing file is no error.
func (d *Days) Remove(day string) error {
	d.forget(d.path(day))
	err := os.Remove(d.path(day))
	if err == nil {
		err = syncDir(d.dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove a file of the %s ledger: %w", d.name, err)
	}
	return nil
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
