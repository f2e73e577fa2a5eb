// Package silentfs is a FUSE file system that stops answering, for tests of programs that must not wait for a file system of
// another user. It speaks the protocol of linux/fuse.h over /dev/fuse. Mounting it needs root.
package silentfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FS is a mounted file system with one file.
type FS struct {
	dir    string
	name   string
	mode   uint32 // of the file
	rdev   uint32 // of the file, as new_encode_dev of the kernel
	conn   int    // /dev/fuse
	stop   int    // an eventfd
	silent atomic.Bool
	ended  chan struct{}
}

// Mount mounts a file system at dir that has one file with this name: a regular file for rdev 0, otherwise a character
// device. It answers until Silence is called. Attributes are valid for no time, so every ordinary stat asks the server.
func Mount(dir, name string, rdev uint64) (*FS, error) {
	conn, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open /dev/fuse: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(conn)
		return nil, fmt.Errorf("cannot make an eventfd: %w", err)
	}
	f := &FS{dir: dir, name: name, mode: unix.S_IFREG | 0o666, conn: conn, stop: stop, ended: make(chan struct{})}
	if rdev != 0 {
		major, minor := unix.Major(rdev), unix.Minor(rdev)
		f.mode, f.rdev = unix.S_IFCHR|0o666, minor&0xff|major<<8|minor&^0xff<<12
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", conn)
	if err := unix.Mount("silentfs", dir, "fuse", unix.MS_NOSUID, options); err != nil {
		unix.Close(conn)
		unix.Close(stop)
		return nil, fmt.Errorf("cannot mount a FUSE file system at %s: %w", dir, err)
	}
	go f.serve()
	return f, nil
}

// Open opens the file. The Go runtime would register it with its poller, and this asks the file system: the process that
// serves it would wait for itself, with no way for the garbage collector to stop that thread, and hang indefinitely. A
// descriptor in blocking mode is not registered.
func (f *FS) Open() (*os.File, error) {
	name := filepath.Join(f.dir, f.name)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Silence ends all answers. Requests are still read, so the kernel counts them as being answered, and not even a fatal signal
// ends the wait of a process (fuse_dev_do_read and request_wait_answer of the kernel).
func (f *FS) Silence() { f.silent.Store(true) }

// Close ends the connection, so that waiting processes get an error, and unmounts the file system.
func (f *FS) Close() error {
	if _, err := unix.Write(f.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("cannot stop the FUSE server: %w", err)
	}
	<-f.ended
	unix.Close(f.stop)
	if err := unix.Unmount(f.dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot unmount %s: %w", f.dir, err)
	}
	return nil
}

// serve answers requests until Close.
func (f *FS) serve() {
	defer close(f.ended)
	defer unix.Close(f.conn) // This aborts the connection.
	buf := make([]byte, 1<<17)
	for {
		wait := []unix.PollFd{{Fd: int32(f.conn), Events: unix.POLLIN}, {Fd: int32(f.stop), Events: unix.POLLIN}}
		if _, err := unix.Poll(wait, -1); err != nil && !errors.Is(err, unix.EINTR) || wait[1].Revents != 0 {
			return
		}
		n, err := unix.Read(f.conn, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOENT) { // ENOENT: the request was interrupted
			continue
		}
		if err != nil || n < inHeader {
			return
		}
		if !f.silent.Load() {
			f.answer(buf[:n])
		}
	}
}

// The requests that are answered, with their numbers in linux/fuse.h, and the lengths of the headers.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opInit        = 26
	opInterrupt   = 36
	opBatchForget = 42

	inHeader, outHeader = 40, 16
	rootNode, fileNode  = 1, 2
)

// answer answers one request. The kernel does not repeat a request that gets ENOSYS, like the flush of a close.
func (f *FS) answer(request []byte) {
	op, node := binary.NativeEndian.Uint32(request[4:]), binary.NativeEndian.Uint64(request[16:])
	switch op {
	case opForget, opBatchForget, opInterrupt: // They have no answer.
	case opInit:
		out := make([]byte, 64)
		binary.NativeEndian.PutUint32(out, 7)          // the version of the protocol
		binary.NativeEndian.PutUint32(out[4:], 31)     // and its minor version
		binary.NativeEndian.PutUint32(out[20:], 1<<12) // the largest write
		f.reply(request, 0, out)
	case opLookup:
		if name := string(request[inHeader : len(request)-1]); name != f.name {
			f.reply(request, unix.ENOENT, nil)
			return
		}
		out := make([]byte, 40, 128)
		binary.NativeEndian.PutUint64(out, fileNode)
		f.reply(request, 0, append(out, f.attributes(fileNode)...))
	case opGetattr:
		f.reply(request, 0, append(make([]byte, 16, 104), f.attributes(node)...))
	case opOpen:
		f.reply(request, 0, make([]byte, 16))
	case opRead:
		f.reply(request, 0, make([]byte, os.Getpagesize()))
	case opWrite:
		out := make([]byte, 8)
		copy(out, request[inHeader+16:inHeader+20]) // All of it is written.
		f.reply(request, 0, out)
	default:
		f.reply(request, unix.ENOSYS, nil)
	}
}

// attributes is a struct fuse_attr.
func (f *FS) attributes(node uint64) []byte {
	mode, rdev, size := uint32(unix.S_IFDIR|0o777), uint32(0), uint64(0)
	if node == fileNode {
		mode, rdev = f.mode, f.rdev
		size = uint64(os.Getpagesize()) // A page that can be mapped.
	}
	out := make([]byte, 88)
	binary.NativeEndian.PutUint64(out, node)
	binary.NativeEndian.PutUint64(out[8:], size)
	binary.NativeEndian.PutUint32(out[60:], mode)
	binary.NativeEndian.PutUint32(out[64:], 1) // links
	binary.NativeEndian.PutUint32(out[76:], rdev)
	return out
}

// reply writes an answer. It fails only when the process does not wait any more.
func (f *FS) reply(request []byte, errno unix.Errno, body []byte) {
	out := make([]byte, outHeader, outHeader+len(body))
	binary.NativeEndian.PutUint32(out, uint32(outHeader+len(body)))
	binary.NativeEndian.PutUint32(out[4:], uint32(-int32(errno)))
	copy(out[8:], request[8:16]) // the number of the request
	_, _ = unix.Write(f.conn, append(out, body...))
}
