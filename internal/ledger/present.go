package ledger

import (
	"errors"
	"io/fs"
	"os"
)

// openFile is a file that is open or was written last, and its name.
type openFile struct {
	path string
	info fs.FileInfo
}

// present reports whether the name is still that of the file.
func (o *openFile) present() bool {
	now, err := os.Lstat(o.path)
	return err == nil && os.SameFile(now, o.info)
}

// Removals counts how often another program was found to have removed or replaced the file that is written. Where no line is written, the
// name is compared with one call of the kernel, without waiting for the writer; after present is false, Sync reports what is missing, and
// the next entry goes on in a new file.
func (l *Ledger) Removals() (n uint64, present bool) {
	if o := l.open.Load(); o != nil {
		return l.removals.Load(), o.present()
	}
	_, err := os.Lstat(l.dir)
	return l.removals.Load(), err == nil
}

// Removals counts how often another program was found to have removed or replaced the file that was written last. It costs one call of the
// kernel.
func (d *Days) Removals() uint64 {
	d.compare()
	return d.removals.Load()
}

// forget ends that a name is compared, because this process changes it.
func (d *Days) forget(path string) {
	if o := d.last.Load(); o != nil && o.path == path {
		d.last.Store(nil)
	}
}

// compare finds out whether the file that was written last still has its name, before another takes its place.
func (d *Days) compare() {
	o := d.last.Load()
	switch {
	case o == nil: // None was written yet, or its loss was counted.
	case !o.present() && d.last.CompareAndSwap(o, nil):
		d.removals.Add(1)
	}
}

// open opens a file, and creates the directory again if that was removed.
func (d *Days) open(path string, flags int) (*os.File, error) {
	d.compare()
	f, err := os.OpenFile(path, flags, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, flags, 0o600)
}
