package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
)

// dir is the directory of the store: names are plain, without slashes. Tests replace it by a directory that loses and fails
// operations, as a real one may.
type dir interface {
	Open(name string, flag int) (file, error)
	Rename(from, to string) error
	Link(from, to string) error
	Remove(name string) error
	Sync() error // makes renames, links and removals durable
}

// file is an open file.
type file interface {
	io.ReadWriteCloser
	Sync() error
	Size() (int64, error)
	Truncate(size int64) error
	Allocate(size int64) error // allocates the blocks now, so that a later write cannot fail for lack of space
}

// osDir is a directory of the host.
type osDir struct{ root *os.Root }

// The modes of the directories: only root reads the state, and everybody reaches the socket in the run directory.
const (
	stateMode = 0o700
	runMode   = 0o755
)

// openDir opens the directory, and creates it with its mode if missing.
func openDir(path string, mode fs.FileMode) (osDir, error) {
	if err := durable.MakeDirectories(path, mode); err != nil {
		return osDir{}, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return osDir{}, err
	}
	info, err := root.Stat(".")
	if err == nil && info.Mode().Perm()&0o022 != 0 {
		err = fmt.Errorf("other users may write to it (mode %04o): run chmod go-w %s", info.Mode().Perm(), path)
	}
	if err != nil {
		return osDir{}, errors.Join(err, root.Close())
	}
	return osDir{root}, nil
}

func (d osDir) Open(name string, flag int) (file, error) {
	f, err := d.root.OpenFile(name, flag|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d osDir) Rename(from, to string) error { return d.root.Rename(from, to) }
func (d osDir) Link(from, to string) error   { return d.root.Link(from, to) }
func (d osDir) Remove(name string) error     { return d.root.Remove(name) }

func (d osDir) Sync() (err error) {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Allocate falls back to writing zeros where the filesystem cannot allocate without.
func (f osFile) Allocate(size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	_, err = io.CopyN(f.File, zeros{}, size)
	return err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// isFull reports whether an error means that there is no space, and not that the disk fails.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// readFile reads a whole file.
func readFile(d dir, name string) (b []byte, err error) {
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return boundedread.All(f, boundedread.Record)
}

// writeFile writes a whole file and waits until it is on the disk.
func writeFile(d dir, name string, flag int, b []byte) (err error) {
	f, err := d.Open(name, os.O_WRONLY|flag)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(b))); err != nil { // a reused file may have been longer
		return err
	}
	return f.Sync()
}

// Replace atomically replaces a file that is only used until the next boot: a reader and a restarted daemon find the old or
// the new content. It does not wait for the disk, so a power cut may leave any content.
func Replace(path string, content []byte, mode os.FileMode) error {
	return replace(path, [][]byte{content}, mode)
}

func replace(path string, parts [][]byte, mode os.FileMode) error {
	temp := "." + filepath.Base(path) + ".new"
	if err := durable.ReplaceParts(path, parts, durable.Options{Mode: mode, Any: true, Temp: temp, Volatile: true}); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
