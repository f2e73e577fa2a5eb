package procfs

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A socket is found at its process, and a thread that waits to read from it by its descriptor.
func TestSocketsOfAProcess(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil {
		t.Fatal(err)
	}
	sockets, err := Sockets(os.Getpid())
	if fd, has := sockets[st.Ino]; err != nil || !has || fd != fds[0] {
		t.Errorf("descriptor %d, %v, want %d", fd, err, fds[0])
	}
	users, err := SocketUsers(t.Context(), st.Ino)
	if err != nil || !slices.ContainsFunc(users, func(s Stat) bool { return s.PID == os.Getpid() }) {
		t.Errorf("used by %+v, %v", users, err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _, _ = unix.Recvfrom(fds[0], make([]byte, 1), 0) // It returns when the other end is closed.
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for waited := false; !waited; <-tick.C {
		awaited, err := AwaitedSockets(os.Getpid())
		if errors.Is(err, os.ErrPermission) {
			t.Skipf("needs the right to read what its own threads wait for: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		waited = slices.Contains(awaited, fds[0])
	}
	unix.Close(fds[1])
	<-read
	if awaited, err := AwaitedSockets(os.Getpid()); err != nil || slices.Contains(awaited, fds[0]) {
		t.Errorf("after the read it waits for %v, %v", awaited, err)
	}
	unix.Close(fds[0])
	if sockets, err := Sockets(os.Getpid()); err != nil || sockets[st.Ino] != 0 {
		t.Errorf("after its end: %v, %v", sockets, err)
	}
	if _, err := Sockets(1 << 30); !errors.Is(err, ErrNoProcess) {
		t.Errorf("of no process: %v", err)
	}
}
