package store

import (
	"os"
	"path/filepath"
)

// RunDir keeps files that live until the next boot. A file is replaced as a whole, so that our death leaves the old or the
// new, and is not synced: after a power cut nobody reads it, and every start of a lease waits for it.
type RunDir string

// Write replaces a file. Root alone may read it.
func (d RunDir) Write(name string, b []byte) error { return Replace(d.Path(name), b, 0o600) }

// Read gives a file; an error that is os.ErrNotExist when there is none.
func (d RunDir) Read(name string) ([]byte, error) { return os.ReadFile(d.Path(name)) }

// Path is where a file is.
func (d RunDir) Path(name string) string { return filepath.Join(string(d), name) }
