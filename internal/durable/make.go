package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// MakeDirectory creates a directory unless it is there. Its mode is the one that the caller names: the umask, which is 077 in the unit of
// gpushared and on hardened hosts, would close it to users who are to reach it.
func MakeDirectory(name string, mode fs.FileMode) error {
	err := os.Mkdir(name, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.Chmod(name, mode)
	}
	return err
}

// MakeDirectories is MakeDirectory for a directory and those above it.
func MakeDirectories(name string, mode fs.FileMode) error {
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if above := filepath.Dir(name); above != name {
		if err := MakeDirectories(above, mode); err != nil {
			return err
		}
	}
	return MakeDirectory(name, mode)
}
