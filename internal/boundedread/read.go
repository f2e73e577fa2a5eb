package boundedread

import (
	"errors"
	"io"
	"strconv"

	"golang.org/x/sys/unix"
)

// Trusted reads a file that only root, the daemon's user or the kernel writes, and whose name users cannot change. It follows
// links, and refuses what is no regular file without waiting for it.
func Trusted(path string, limit int) ([]byte, error) {
	return readPath(path, 0, limit)
}

// TrustedPrefix is Trusted for a file that may be longer than what is needed of it.
func TrustedPrefix(path string, limit int) (b []byte, cut bool, err error) {
	return prefixOfPath(path, 0, limit)
}

// OfProcess reads the beginning of a file in /proc/PID that the kernel composes from its own data, such as stat, status, cgroup
// or fdinfo/N. cut: there is more. It is not for files that the kernel copies from the memory of the process: see Memory.
func OfProcess(pid int, name string, limit int) (b []byte, cut bool, err error) {
	return prefixOfPath("/proc/"+strconv.Itoa(pid)+"/"+name, 0, limit)
}

// All reads a stream to its end. With more than limit bytes, it is an error. The caller sets the deadline of the stream.
func All(r io.Reader, limit int) ([]byte, error) {
	b, cut, err := prefix(r.Read, limit)
	if err == nil && cut {
		err = tooLarge(limit)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Prefix reads the beginning of a stream. cut: there is more.
func Prefix(r io.Reader, limit int) (b []byte, cut bool, err error) { return prefix(r.Read, limit) }

func readPath(path string, flags, limit int) ([]byte, error) {
	b, cut, err := prefixOfPath(path, flags, limit)
	if err != nil {
		return nil, err
	}
	if cut {
		return nil, pathError("read", path, tooLarge(limit))
	}
	return b, nil
}

// prefixOfPath opens without package os: it would register the file with the runtime's poller, which asks the file system.
func prefixOfPath(path string, flags, limit int) (b []byte, cut bool, err error) {
	fd, err := openRegular(path, flags)
	if err != nil {
		return nil, false, err
	}
	defer unix.Close(fd)
	b, cut, err = prefix(func(b []byte) (int, error) {
		n, err := uninterrupted(func() (int, error) { return unix.Read(fd, b) })
		if n == 0 && err == nil {
			err = io.EOF
		}
		return max(n, 0), err
	}, limit)
	if err != nil {
		return nil, false, pathError("read", path, err)
	}
	return b, cut, nil
}

// openRegular opens a file without waiting for the other end of a FIFO or for a device.
func openRegular(path string, flags int) (int, error) {
	fd, err := uninterrupted(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
	})
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ELOOP) && flags&unix.O_NOFOLLOW != 0 {
		err = ErrType // a socket; a link
	}
	if err != nil {
		return -1, pathError("open", path, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = wrongType(st.Mode)
	}
	if err != nil {
		unix.Close(fd)
		return -1, pathError("open", path, err)
	}
	return fd, nil
}

// firstRead is enough for most files of the kernel, which are read with one call and one that finds the end.
const firstRead = 1 << 10

// prefix reads until the end or until there is more than limit.
func prefix(read func([]byte) (int, error), limit int) (b []byte, cut bool, err error) {
	b = make([]byte, 0, min(firstRead, limit+1))
	for empty := 0; ; {
		if len(b) > limit {
			return b[:limit], true, nil
		}
		if len(b) == cap(b) {
			grown := make([]byte, len(b), min(2*cap(b), limit+1))
			copy(grown, b)
			b = grown
		}
		n, err := read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			if len(b) > limit {
				return b[:limit], true, nil
			}
			return b, false, nil
		}
		if err != nil {
			return b, false, err
		}
		if n > 0 {
			empty = 0
		} else if empty++; empty == 100 {
			return b, false, io.ErrNoProgress
		}
	}
}

// uninterrupted repeats a call that a signal has interrupted.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
