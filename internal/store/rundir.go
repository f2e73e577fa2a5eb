package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// RunDir has files that are used until the next boot. A file is replaced atomically, so that a restarted daemon finds the
// old or the new one. It is not synced: it is not read after a power cut, and every start of a lease waits for the write.
// A file has a checksum, and the one before it is kept.
type RunDir string

// Damage is why a file could not be used, and that the one before it was read. It is no error of the read.
type Damage struct {
	Reason string
	Lost   bool // the one before it could not be read either
}

// Err is an error if nothing could be read.
func (d *Damage) Err() error {
	if d != nil && d.Lost {
		return errors.New(d.Reason)
	}
	return nil
}

// Write replaces a file; its content may be in parts. Only root may read it.
func (d RunDir) Write(name string, content ...[]byte) error {
	line, err := header{Format: Format}.line(content...)
	if err != nil {
		return err
	}
	path := d.Path(name)
	next := d.Path("." + name + ".previous.new")
	err = unix.Link(path, next)
	if errors.Is(err, fs.ErrExist) { // A kill has left it.
		if err = ignoreMissing(os.Remove(next)); err == nil {
			err = unix.Link(path, next)
		}
	}
	switch {
	case err == nil:
		if err := unix.Rename(next, d.previous(name)); err != nil { // os.Rename reads what it replaces.
			return fmt.Errorf("cannot write %s: %w", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return replace(path, append([][]byte{line}, content...), 0o600)
}

// Remove removes a file and the one before it. An interrupted one leaves the file.
func (d RunDir) Remove(name string) error {
	for _, path := range []string{d.previous(name), d.Path(name)} {
		if err := ignoreMissing(os.Remove(path)); err != nil {
			return fmt.Errorf("cannot remove %s: %w", path, err)
		}
	}
	return nil
}

// Read returns a file; an os.ErrNotExist when there is none. A damaged file is kept under the name NAME.corrupt, and the one
// before it is read.
func (d RunDir) Read(name string) ([]byte, *Damage, error) {
	b, err := readSealed(d.Path(name))
	if err == nil {
		return b, nil, nil
	}
	before, previousErr := readSealed(d.previous(name))
	switch {
	case errors.Is(err, fs.ErrNotExist) && errors.Is(previousErr, fs.ErrNotExist):
		return nil, nil, err
	case !errors.Is(err, errCorrupt) && !errors.Is(err, fs.ErrNotExist):
		return nil, nil, err
	}
	damage := &Damage{Reason: fmt.Sprintf("%s could not be used (%v)", name, err)}
	if errors.Is(err, errCorrupt) {
		if err := os.Rename(d.Path(name), d.Path(name+".corrupt")); err != nil {
			return nil, nil, err
		}
	}
	if previousErr != nil {
		damage.Lost = true
		damage.Reason += fmt.Sprintf(", nor could the one before it (%v)", previousErr)
		return nil, damage, nil
	}
	return before, damage, nil
}

func readSealed(path string) ([]byte, error) {
	file, err := boundedread.Trusted(path, boundedread.Record)
	if err != nil {
		return nil, err
	}
	_, content, err := unseal(file)
	if err != nil && isUnsealed(file) {
		return file, nil
	}
	return content, err
}

// isUnsealed reports whether a file is that of a version without checksums: one JSON value without a header.
func isUnsealed(file []byte) bool {
	var h header
	return json.Valid(file) && (json.Unmarshal(file, &h) != nil || h.SHA256 == "")
}

// Path is the path of a file.
func (d RunDir) Path(name string) string { return filepath.Join(string(d), name) }

func (d RunDir) previous(name string) string { return d.Path(name + ".previous") }
