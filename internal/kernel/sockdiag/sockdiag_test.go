package sockdiag

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func inode(t *testing.T, c net.Conn) uint64 {
	t.Helper()
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// Both ends of a connection are listed, each with the other; the accepted one has the listener's name. One that was not accepted has
// none that a process could have.
func TestConnected(t *testing.T) {
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func() net.Conn {
		c, err := net.Dial("unixpacket", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	client := dial()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	waiting := dial()
	all, err := Connected()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Socket{
		{Inode: inode(t, accepted), Peer: inode(t, client), Name: path},
		{Inode: inode(t, client), Peer: inode(t, accepted)},
	} {
		if !slices.Contains(all, want) {
			t.Errorf("%+v is not listed", want)
		}
	}
	if other := inode(t, waiting); slices.ContainsFunc(all, func(s Socket) bool { return s.Inode != 0 && s.Peer == other }) {
		t.Error("a connection that was not accepted has another end")
	}
}

func TestDamagedMessages(t *testing.T) {
	for _, b := range [][]byte{make([]byte, 16), append([]byte{200, 0, 0, 0}, make([]byte, 20)...), {16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}} {
		if _, err := parse(b, func(Socket) {}); err == nil {
			t.Errorf("%x is accepted", b)
		}
	}
}
