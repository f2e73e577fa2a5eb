package kernellog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxRecord is longer than any record: the kernel formats one into 2048 bytes (PRINTK_MESSAGE_MAX).
const maxRecord = 8192

// Log is the kernel's log of a host. Its zero value with HostRoot set is ready to use; its methods are not called at the same time.
type Log struct {
	HostRoot string   // of this host: /
	file     *os.File // opened by Begin
}

// Begin sets where Follow begins: records that are written from now on are read. Without it that is when Follow is called. Why the log
// cannot be opened is returned by Follow, too.
func (l *Log) Begin() error {
	file, err := begin(l.HostRoot)
	if err != nil {
		return err
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file = file
	return nil
}

// Follow calls f for each XID that the driver reports from Begin or from now on, until ctx ends, and returns why it ended. Earlier
// records are not read. Of this host it reads the log that is open as standard input, if it is; otherwise it needs CAP_SYSLOG where
// kernel.dmesg_restrict is set.
func (l *Log) Follow(ctx context.Context, f func(Record)) error {
	file := l.file
	l.file = nil
	if file == nil {
		var err error
		if file, err = begin(l.HostRoot); err != nil {
			return err
		}
	}
	defer func() { file.Close() }() // which may be another file by then
	path := logPath(l.HostRoot)
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("cannot read the kernel log %s: %w", path, err)
	}
	if info.Mode().IsRegular() {
		err = (&grown{path: path, file: &file, f: f}).follow(ctx)
	} else {
		err = device(ctx, file, f)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("cannot read the kernel log %s: %w", path, err)
}

func logPath(hostRoot string) string { return filepath.Join(hostRoot, "dev/kmsg") }

// begin opens the log at its end.
func begin(hostRoot string) (*os.File, error) {
	path := logPath(hostRoot)
	var file *os.File
	if path == "/dev/kmsg" {
		file = passed(int(os.Stdin.Fd()))
	}
	if file == nil {
		var err error
		if file, err = open(path); err != nil {
			return nil, err
		}
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot read the kernel log %s: %w", path, err)
	}
	return file, nil
}

// open opens the log without blocking, so that the end of a context can end a read.
func open(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the kernel log: %w", err)
	}
	return file, nil
}

// records is what is read of a file of the kernel.
type records interface {
	io.Reader
	SetReadDeadline(t time.Time) error
}

// device reads the kernel's device, which returns one record for each read and blocks until there is one.
func device(ctx context.Context, file records, f func(Record)) error {
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Now()) })
	defer stop()
	lost := false
	buf := make([]byte, maxRecord)
	for {
		n, err := file.Read(buf)
		switch {
		case errors.Is(err, syscall.EPIPE): // the next record was overwritten; the kernel continues at the oldest one
			lost = true
			continue
		case err != nil:
			return err
		}
		if r, ok := Parse(string(buf[:n])); ok {
			r.Time, r.Lost = time.Now(), lost
			f(r)
			lost = false
		}
	}
}

// grown reads a log that is a regular file, as that of a virtual node is: it grows, and is replaced when the node boots.
type grown struct {
	path string
	file **os.File
	f    func(Record)
	rest string // an incomplete line
	long bool   // it is longer than any record
}

// follow waits for the kernel's notice of each change of the file's directory (inotify).
func (g *grown) follow(ctx context.Context) error {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot watch it: %w", err)
	}
	notices := os.NewFile(uintptr(fd), "inotify")
	defer notices.Close()
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(g.path), unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		return fmt.Errorf("cannot watch it: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = notices.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		// What was written before the watch existed is read in the first pass.
		if err := g.read(); err != nil {
			return err
		}
		if _, err := notices.Read(buf); err != nil {
			return err
		}
	}
}

// read reads to the end of the file, and the file that has replaced it.
func (g *grown) read() error {
	if err := g.lines(); err != nil {
		return err
	}
	is, err := os.Stat(g.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // between two boots
	}
	if err != nil {
		return err
	}
	if was, err := (*g.file).Stat(); err != nil || os.SameFile(is, was) {
		return err
	}
	next, err := open(g.path)
	if err != nil {
		return err
	}
	(*g.file).Close()
	*g.file, g.rest, g.long = next, "", false
	return g.lines()
}

func (g *grown) lines() error {
	in := bufio.NewReaderSize(*g.file, maxRecord)
	for {
		part, err := in.ReadSlice('\n')
		if len(g.rest)+len(part) <= maxRecord {
			g.rest += string(part)
		} else {
			g.rest, g.long = "", true // It is no record.
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return err
		}
		if r, ok := Parse(strings.TrimSuffix(g.rest, "\n")); ok && !g.long {
			r.Time = time.Now()
			g.f(r)
		}
		g.rest, g.long = "", false
	}
}
