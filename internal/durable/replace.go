package durable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Options are how a file is replaced.
type Options struct {
	// Mode is that of a new file, whatever the umask is; 0: 0666 less the umask, as other programs make files.
	Mode fs.FileMode
	// Keep keeps the mode and the group of a file that is replaced, if the caller owns it and it has no other name.
	Keep bool
	// Any replaces also what is no regular file, except a directory. Else that is refused: another user may have put it there, or
	// the caller means another file.
	Any bool
	// Temp is the name of the file until it is complete; what has this name is removed. Only one caller may use it at a time. Empty: a
	// name that begins with Prefix and that no other caller has.
	Temp, Prefix string
	// Volatile does not wait for the disk: after a power cut the file may have any content.
	Volatile bool
	// Step is called after each step with its name: created, written, renamed. It is for tests that end the program there; nil: nothing is.
	Step func(name string)
}

// ErrRefused: the name is that of something that is not replaced.
var ErrRefused = errors.New("it is not replaced")

// Replace replaces a file by a new one: a reader finds the old content or the new one. It never writes to what is there, never
// changes its mode or owner, and never follows a symbolic link at the name. In a directory that others may write to they can
// replace the file before and after, and reach no other with that.
func Replace(name string, content []byte, o Options) error {
	return ReplaceParts(name, [][]byte{content}, o)
}

// ReplaceParts is Replace with content in parts, which are not put together in memory.
func ReplaceParts(name string, parts [][]byte, o Options) (err error) {
	base := filepath.Base(name)
	if base == "." || base == "/" || base == ".." || name[len(name)-1] == '/' {
		return fmt.Errorf("it is a directory: %w", ErrRefused)
	}
	dir, err := openDirectory(path.Dir(name))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }() // It was only a place.
	was, err := replaceable(dir, base, o)
	if err != nil {
		return err
	}
	f, err := o.create(dir, was != nil)
	if err != nil {
		return err
	}
	o.passed("created")
	if err = writeParts(f, parts); err == nil {
		err = o.setMode(f, was)
	}
	o.passed("written")
	if err == nil && !o.Volatile {
		err = f.Sync()
	}
	if err == nil {
		err = unix.Renameat(dir, f.Name(), dir, base)
	}
	if err != nil {
		return errors.Join(err, f.Close(), ignoreMissing(unix.Unlinkat(dir, f.Name(), 0)))
	}
	o.passed("renamed")
	err = errors.Join(isNamed(f, dir, base), f.Close())
	if !o.Volatile {
		err = errors.Join(err, syncDirectory(dir))
	}
	return err
}

// mostParts is how many parts the kernel writes at once (IOV_MAX).
const mostParts = 1024

// writeParts writes the parts from where they are: the record of the leases is written several times for each of them, and a buffer for
// each write was most of the daemon's garbage.
func writeParts(f *os.File, parts [][]byte) error {
	parts = slices.DeleteFunc(slices.Clone(parts), func(p []byte) bool { return len(p) == 0 })
	for len(parts) > 0 {
		n, err := unix.Writev(int(f.Fd()), parts[:min(len(parts), mostParts)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return &os.PathError{Op: "write", Path: f.Name(), Err: err}
		}
		for len(parts) > 0 && n >= len(parts[0]) {
			n, parts = n-len(parts[0]), parts[1:]
		}
		if n > 0 {
			parts[0] = parts[0][n:]
		}
	}
	return nil
}

// replaceable returns the regular file with a name whose mode and group are kept; nil if there is none.
func replaceable(dir int, base string, o Options) (*unix.Stat_t, error) {
	var st unix.Stat_t
	switch err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	}
	kind := st.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFDIR:
		return nil, fmt.Errorf("it is a directory: %w", ErrRefused)
	case kind != unix.S_IFREG && !o.Any:
		return nil, fmt.Errorf("it is a %s of uid %d: %w", kindName(kind), st.Uid, ErrRefused)
	case kind != unix.S_IFREG || !o.Keep || st.Uid != uint32(os.Geteuid()) || st.Nlink != 1:
		return nil, nil
	}
	return &st, nil
}

func kindName(kind uint32) string {
	switch kind {
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFIFO:
		return "named pipe"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// create creates the file under the name that it has until it is complete. It has that name as its own.
func (o *Options) create(dir int, kept bool) (*os.File, error) {
	mode := uint32(0o666)
	if o.Mode != 0 || kept {
		mode = 0o600
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	name := o.Temp
	if name == "" {
		name = o.Prefix + rand.Text()
	}
	fd, err := unix.Openat(dir, name, flags, mode)
	if o.Temp != "" && errors.Is(err, unix.EEXIST) { // A kill has left it.
		if err = ignoreMissing(unix.Unlinkat(dir, name, 0)); err == nil {
			fd, err = unix.Openat(dir, name, flags, mode)
		}
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// setMode gives the new file its mode, and that and the group of the one that it replaces.
func (o *Options) setMode(f *os.File, was *unix.Stat_t) error {
	switch {
	case was != nil:
		mode := fs.FileMode(was.Mode & 0o777)
		if err := f.Chown(-1, int(was.Gid)); err != nil {
			mode &= 0o707 // Another group must not get the rights of that one.
		}
		return f.Chmod(mode)
	case o.Mode != 0:
		return f.Chmod(o.Mode)
	}
	return nil
}

// isNamed returns an error unless a name is that of an open file.
func isNamed(f *os.File, dir int, base string) error {
	var open, named unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &open)
	if err == nil {
		err = unix.Fstatat(dir, base, &named, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil && (open.Dev != named.Dev || open.Ino != named.Ino) {
		err = errors.New("another process has replaced it meanwhile")
	}
	return err
}

// syncDirectory makes a rename durable.
func syncDirectory(dir int) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		return nil // A directory that the caller may write to and not read cannot be synced.
	}
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(fd), unix.Close(fd))
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (o *Options) passed(step string) {
	if o.Step != nil {
		o.Step(step)
	}
}
