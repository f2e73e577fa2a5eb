package kernellog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// log is a host root whose kernel log is followed.
type log struct {
	t    *testing.T
	root string
	got  chan Record
	done chan error
	end  context.CancelFunc
}

func (l *log) path() string { return filepath.Join(l.root, "dev/kmsg") }

func (l *log) write(text string) {
	l.t.Helper()
	f, err := os.OpenFile(l.path(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		l.t.Fatal(err)
	}
}

func xid(n int) string {
	return fmt.Sprintf("4,1,2,-;NVRM: Xid (PCI:0000:07:00): %d, pid=5, name=x\n", n)
}

func (l *log) next(want uint64) Record {
	l.t.Helper()
	select {
	case r := <-l.got:
		if r.XID != want {
			l.t.Fatalf("XID %d; want %d", r.XID, want)
		}
		return r
	case err := <-l.done:
		l.t.Fatalf("ended: %v", err)
	case <-time.After(10 * time.Second):
		l.t.Fatalf("no XID %d", want)
	}
	return Record{}
}

// start follows the log and waits until it is followed: until a record is reported that is written again and again.
func start(t *testing.T, root string) *log {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &log{t: t, root: root, got: make(chan Record, 64), done: make(chan error, 1), end: cancel}
	go func() { l.done <- (&Log{HostRoot: root}).Follow(ctx, func(r Record) { l.got <- r }) }()
	t.Cleanup(cancel)
	return l
}

// following writes a record until it is reported, and drops what was reported of it.
func (l *log) following() {
	l.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		l.write(xid(1))
		select {
		case <-l.got:
			l.write(xid(2))
			for {
				if r := <-l.got; r.XID == 2 {
					return
				}
			}
		case err := <-l.done:
			l.t.Fatalf("ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	l.t.Fatal("the log is not read")
}

func TestFollow(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	first := &log{t: t, root: root}
	first.write(xid(99)) // from before
	l := start(t, root)
	l.following()

	l.write("6,1,2,-;usb 1-1: new device\n" + xid(31))
	if r := l.next(31); r.PID != 5 || r.PCI != "0000:07:00" || r.Time.IsZero() || r.Lost {
		t.Errorf("%+v", r)
	}
	// A line in two parts is one record.
	line := xid(43)
	l.write(line[:20])
	l.write(line[20:] + xid(44))
	l.next(43)
	l.next(44)
	// A boot replaces the file. All of the new one was written from now on.
	if err := os.Remove(l.path()); err != nil {
		t.Fatal(err)
	}
	l.write(xid(48))
	l.next(48)
	l.write(xid(79))
	l.next(79)

	l.end()
	if err := <-l.done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	select {
	case r := <-l.got:
		t.Errorf("also %+v", r)
	default:
	}
}

func TestFollowWithoutALog(t *testing.T) {
	if err := (&Log{HostRoot: t.TempDir()}).Follow(t.Context(), func(Record) {}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestFollowTheDevice reads records as the kernel's device gives them: a packet socket gives one for each read too, and blocks.
func TestFollowTheDevice(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	in, out := os.NewFile(uintptr(fds[0]), "log"), os.NewFile(uintptr(fds[1]), "kernel")
	defer in.Close()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	got, done := make(chan Record, 8), make(chan error, 1)
	go func() { done <- device(ctx, in, func(r Record) { got <- r }) }()
	for _, record := range []string{"6,1,2,-;usb 1-1: new device\n", "4,2,3,-;NVRM: Xid (PCI:0000:07:00): 31, pid=5, name=x\n SUBSYSTEM=pci\n", xid(43)} {
		if _, err := out.WriteString(record); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []uint64{31, 43} {
		if r := <-got; r.XID != want {
			t.Errorf("XID %d; want %d", r.XID, want)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// overwritten is a log of which records were overwritten before the second read.
type overwritten struct{ reads int }

func (o *overwritten) SetReadDeadline(time.Time) error { return nil }

func (o *overwritten) Read(b []byte) (int, error) {
	o.reads++
	switch o.reads {
	case 2, 3:
		return 0, syscall.EPIPE
	case 4:
		return copy(b, "6,1,2,-;usb 1-1: new device\n"), nil
	case 7:
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, xid(o.reads)), nil
}

// TestLostRecords has the mark at the XID after the loss only.
func TestLostRecords(t *testing.T) {
	var got []string
	err := device(t.Context(), &overwritten{}, func(r Record) { got = append(got, fmt.Sprint(r.XID, r.Lost)) })
	if want := "[1 false 5 true 6 false]"; fmt.Sprint(got) != want || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v, %v; want %s", got, err, want)
	}
}

// What is written between Begin and Follow is read, and nothing from before: Begin again begins later.
func TestFollowFromItsBegin(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := &log{t: t, root: root, got: make(chan Record, 64), done: make(chan error, 1)}
	followed := &Log{HostRoot: root}
	if err := followed.Begin(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a log: %v", err)
	}
	for _, number := range []int{99, 98} {
		l.write(xid(number))
		if err := followed.Begin(); err != nil {
			t.Fatal(err)
		}
	}
	l.write(xid(31))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { l.done <- followed.Follow(ctx, func(r Record) { l.got <- r }) }()
	l.next(31)
	cancel()
	if err := <-l.done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
