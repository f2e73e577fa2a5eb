package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// opens tries ways to open a device in this process, and prints the outcome of each as a JSON object. The other end of the
// socket sends descriptors.
func (p *probe) opens() {
	got := map[string]string{}
	text := func(err error) string {
		if err == nil {
			return "open"
		}
		return unix.ErrnoName(errnoOf(err))
	}
	fd, err := unix.Open(p.Opens, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	got["open"] = text(err)
	got["io_uring"] = text(uringOpen(p.Opens, 0))
	got["io_uring, by a worker"] = text(uringOpen(p.Opens, sqeAsync))
	for _, what := range []string{"a path that another process opened", "a device that another process opened"} {
		got[what] = text(receive(p.Socket))
	}
	_ = json.NewEncoder(os.Stdout).Encode(got) // The reader reports a missing answer.
}

func errnoOf(err error) unix.Errno {
	var n unix.Errno
	if !errors.As(err, &n) {
		return unix.EINVAL
	}
	return n
}

// receive receives a descriptor. If it is that of a path, it opens the device by it; otherwise it uses the device as it is.
func receive(socket string) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return unix.ENOMSG
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	defer unix.Close(fds[0])
	if buf[0] == 'u' {
		_, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFL, 0)
		return err
	}
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fds[0]), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(again)
	}
	return err
}

// Of <linux/io_uring.h>.
const (
	opOpenat      = 18
	sqeAsync      = 1 << 4
	enterGetevent = 1
	offSQRing     = 0
	offSQEs       = 0x10000000
)

// uringParams is struct io_uring_params.
type uringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32
	_                                                                  [3]uint32
	sq                                                                 struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

// uringSQE is struct io_uring_sqe, of an openat.
type uringSQE struct {
	opcode, flags uint8
	_             uint16
	fd            int32
	_, path       uint64
	mode, oflags  uint32
	data          uint64
	_             [3]uint64
}

// uringOpen opens a file by a request of io_uring: the kernel opens it, by a worker thread with sqeAsync.
func uringOpen(path string, flags uint8) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	var p uringParams
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return unix.ENOSYS // It is switched off.
	}
	defer unix.Close(int(ring))
	// One mapping has both rings, since Linux 5.4.
	size := max(int(p.sq.array+p.sqEntries*4), int(p.cq.cqes+p.cqEntries*16))
	rings, err := unix.Mmap(int(ring), offSQRing, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(rings) }()
	entries, err := unix.Mmap(int(ring), offSQEs, 64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(entries) }()
	at := func(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&rings[offset])) }
	*(*uringSQE)(unsafe.Pointer(&entries[0])) = uringSQE{
		opcode: opOpenat,
		flags:  flags,
		fd:     unix.AT_FDCWD,
		path:   uint64(uintptr(unsafe.Pointer(name))),
		oflags: unix.O_RDWR,
	}
	*at(p.sq.array) = 0
	*at(p.sq.tail)++
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, ring, 1, 1, enterGetevent, 0, 0); errno != 0 {
		return errno
	}
	result := *(*int32)(unsafe.Pointer(&rings[p.cq.cqes+8]))
	if result < 0 {
		return unix.Errno(-result)
	}
	unix.Close(int(result))
	return nil
}

// A lease opens no GPU but its own: not by io_uring, and not by the descriptor of a path that another process sends. A device
// that another process has open can be used: device rules apply when a device is opened.
func TestOtherWaysToOpenADevice(t *testing.T) {
	t.Parallel()
	n := startWithDeviceNodes(t)
	socket := filepath.Join(t.TempDir(), "descriptors")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	send := func(kind byte, path string, flags int) error {
		if err := l.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		c, err := l.AcceptUnix()
		if err != nil {
			return err
		}
		defer c.Close()
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, _, err = c.WriteMsgUnix([]byte{kind}, unix.UnixRights(fd), nil)
		return err
	}
	// A device that exists on every host, and that a lease may not open.
	usable := filepath.Join(filepath.Dir(socket), "kmsg")
	if err := unix.Mknod(usable, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 11))); err != nil {
		t.Skipf("needs rights to make a device node: %v", err)
	}
	if fd, err := unix.Open(usable, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		t.Skipf("needs /dev/kmsg: %v", err)
	} else {
		unix.Close(fd)
	}
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ device, opened string }{
		{filepath.Join(n.Root(), "dev/nvidia2"), "ENXIO"}, // its own: there is no driver
		{filepath.Join(n.Root(), "dev/nvidia3"), "EPERM"},
		{usable, "EPERM"},
	} {
		sent := make(chan error, 1)
		go func() { // It ends with the deadline of the listener.
			sent <- errors.Join(send('p', tt.device, unix.O_PATH), send('u', usable, unix.O_RDONLY|unix.O_NONBLOCK))
		}()
		q, err := json.Marshal(probe{Socket: socket, Opens: tt.device})
		if err != nil {
			t.Fatal(err)
		}
		r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "part", "--", "env", probeEnv+"="+string(q), program)
		if err := <-sent; err != nil {
			t.Errorf("no descriptor was sent: %v", err)
		}
		var got map[string]string
		if err := json.Unmarshal([]byte(r.Out), &got); err != nil {
			t.Fatalf("exit code %d: %s%s", r.Code, r.Out, r.Err)
		}
		for _, way := range []string{"open", "io_uring", "io_uring, by a worker", "a path that another process opened"} {
			if strings.HasPrefix(way, "io_uring") && got[way] == "ENOSYS" {
				t.Logf("io_uring is switched off on this host (kernel.io_uring_disabled)")
				continue
			}
			if got[way] != tt.opened {
				t.Errorf("%s of %s: %s, want %s", way, tt.device, got[way], tt.opened)
			}
		}
		if way := "a device that another process opened"; got[way] != "open" {
			t.Errorf("%s: %s; the documentation says that it can be used", way, got[way])
		}
	}
}
