package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// kept has links of the files on which a control daemon listens. It continues to listen on a file that was removed, so a new link
// to it ends that, without a restart: seen with 535.261.03 and 550.163.01.
func (l layout) kept() string { return filepath.Join(l.dir, "k") }

// listens are the files on which a control daemon listens.
var listens = [...]string{"control", "control_privileged", "log"}

// keepFiles links the files of the daemon that runs.
func (l layout) keepFiles() error {
	err := os.MkdirAll(l.kept(), 0o700)
	for _, name := range listens {
		if err == nil && !sameFile(l, name) {
			err = relink(filepath.Join(l.pipe(), name), filepath.Join(l.kept(), name))
		}
	}
	if err != nil {
		return fmt.Errorf("cannot keep the files of the MPS control daemon: %w", err)
	}
	return nil
}

// forgetFiles removes the links before another daemon starts.
func (l layout) forgetFiles() error { return os.RemoveAll(l.kept()) }

// lostFile returns the first file that was removed and can be linked again; empty if there is none.
func (l layout) lostFile() string {
	for _, name := range listens {
		if _, err := os.Lstat(filepath.Join(l.pipe(), name)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(l.kept(), name)); err == nil {
			return name
		}
	}
	return ""
}

// restoreFiles links the removed files again.
func (l layout) restoreFiles() error {
	for name := l.lostFile(); name != ""; name = l.lostFile() {
		if err := os.Link(filepath.Join(l.kept(), name), filepath.Join(l.pipe(), name)); err != nil {
			return fmt.Errorf("cannot link a file of the MPS control daemon again: %w", err)
		}
	}
	return nil
}

func sameFile(l layout, name string) bool {
	a, errA := os.Lstat(filepath.Join(l.pipe(), name))
	b, errB := os.Lstat(filepath.Join(l.kept(), name))
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// relink replaces a link; a file that is missing has none.
func relink(from, to string) error {
	err := os.Remove(to)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Link(from, to)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
