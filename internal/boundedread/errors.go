package boundedread

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

var (
	// ErrTooLarge means that there is more than the caller reads.
	ErrTooLarge = errors.New("it is too large")
	// ErrType means that it is no regular file: a FIFO, a device, a socket, a link or a directory.
	ErrType = errors.New("it is no regular file")
	// ErrNoAnswer means that the file system, or the memory of the process, did not answer in time.
	ErrNoAnswer = errors.New("it does not answer")
)

func tooLarge(limit int) error {
	if limit >= 1<<20 {
		return fmt.Errorf("%w: more than %d MiB", ErrTooLarge, limit>>20)
	}
	if limit >= 1<<10 {
		return fmt.Errorf("%w: more than %d KiB", ErrTooLarge, limit>>10)
	}
	return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
}

func wrongType(mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return fmt.Errorf("%w, but a FIFO", ErrType)
	case unix.S_IFCHR, unix.S_IFBLK:
		return fmt.Errorf("%w, but a device", ErrType)
	case unix.S_IFSOCK:
		return fmt.Errorf("%w, but a socket", ErrType)
	case unix.S_IFDIR:
		return fmt.Errorf("%w, but a directory", ErrType)
	}
	return ErrType
}

// pathError is what the functions of package os return, so that errors.Is with fs.ErrNotExist works.
func pathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: path, Err: err}
}
