package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// replaceFile replaces a file as a whole: a failure leaves the old one. Until it is complete, the new one has a name that begins with
// a prefix. A device or a pipe is written to.
func replaceFile(path, prefix string, content []byte) error {
	err := replace(path, prefix, content)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

func replace(path, prefix string, content []byte) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // The link stays.
	}
	if i, err := os.Stat(path); err == nil && !i.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(content)
		return errors.Join(err, f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(path), prefix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // Renamed if everything succeeded.
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
