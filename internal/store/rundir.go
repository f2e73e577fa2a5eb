package store

import (
	"os"
	"path/filepath"
)

// RunDir has files that are used until the next boot. A file is replaced atomically, so that a restarted daemon finds the
// old or the new one. It is not synced: it is not read after a power cut, and every start of a lease waits for the write.
type RunDir string

// Write replaces a file. Only root may read it.
func (d RunDir) Write(name string, b []byte) error { return Replace(d.Path(name), b, 0o600) }

// Read returns a file; an os.ErrNotExist when there is none.
func (d RunDir) Read(name string) ([]byte, error) { return os.ReadFile(d.Path(name)) }

// Path is the path of a file.
func (d RunDir) Path(name string) string { return filepath.Join(string(d), name) }
