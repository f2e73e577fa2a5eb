// Package durable writes small files that survive a power cut.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// Write replaces a file, which only its owner may read. When it returns without an error, the new content is on the disk; after
// an error or a power cut the file has the old content or the new one. Only one caller may write a path at a time.
func Write(path string, content []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
