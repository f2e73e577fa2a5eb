package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/passed"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
)

// connectEnv makes this binary a process that connects to a socket and exits at the end of its input.
const connectEnv = "DAEMON_TEST_CONNECT"

func TestMain(m *testing.M) {
	path := os.Getenv(connectEnv)
	if path == "" {
		goleak.VerifyTestMain(m) // It does not return.
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer c.Close()
	fmt.Println("connected")
	_, _ = os.Stdin.Read(make([]byte, 1)) // Wait for the end of the input.
}

// connectFromProcess connects to a listener from a process of its own, which exits when end is called.
func connectFromProcess(t *testing.T, l *net.UnixListener) (pid int, end func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), connectEnv+"="+l.Addr().String())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	output := make([]byte, 100)
	if n, err := out.Read(output); err != nil || !strings.HasPrefix(string(output[:n]), "connected") {
		t.Fatalf("it does not connect: %s %v", output[:n], err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			in.Close()
			_ = cmd.Wait() // Its exit status does not matter.
		}
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

// peerWithProcess returns the peer with its process, as an accepted connection has it.
func peerWithProcess(c net.Conn) (*Peer, error) {
	p, err := peerOf(c)
	if err == nil {
		p.findProcess(c.(*net.UnixConn))
	}
	return p, err
}

func listenUnix(t *testing.T) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestPeerIsTheProcessThatConnected(t *testing.T) {
	l := listenUnix(t)
	pid, end := connectFromProcess(t, l)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start, err := procfs.Start(pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := peerWithProcess(c)
	if err != nil || p.UID != os.Geteuid() || p.GID != os.Getegid() || p.Process.PID != pid || p.Process.Start != start {
		t.Errorf("the peer is %+v, %v, want pid %d", p, err, pid)
	}
	byPID := func() (int, error) { return unix.PidfdOpen(pid, 0) }
	if got := startOfPeer(byPID, pid, os.Geteuid()); got != start {
		t.Errorf("by its pid it started at %d, want %d", got, start)
	}
	if got := startOfPeer(byPID, pid, os.Geteuid()+1); got != 0 {
		t.Error("a process of another user is accepted as the peer")
	}
	end()
	if p, err := peerWithProcess(c); err != nil || p.Process.Start != 0 {
		t.Errorf("a peer that has exited is %+v, %v", p, err)
	}
	if got := startOfPeer(byPID, pid, os.Geteuid()); got != 0 {
		t.Error("by its pid a peer that has exited is found")
	}
}

// A process connects and exits, and a process of root gets its pid. The caller must not get a lease on that process.
func TestPeerWithAReusedPID(t *testing.T) {
	if !procfstest.InPIDNamespace(t) {
		return
	}
	l := listenUnix(t)
	pid, end := connectFromProcess(t, l)
	end()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	name := startWithPID(t, pid)
	if p, err := peerWithProcess(c); err != nil || p.Process.PID != pid || p.Process.Start != 0 {
		t.Errorf("the peer is %+v, %v: that is process %s", p, err, name)
	}
	// Without SO_PEERPIDFD only the user differs.
	if got := startOfPeer(func() (int, error) { return unix.PidfdOpen(pid, 0) }, pid, 65534); got != 0 {
		t.Errorf("by its pid it started at %d: that is process %s", got, name)
	}
}

// startWithPID starts a process with this pid, which is free.
func startWithPID(t *testing.T, pid int) string {
	t.Helper()
	procfstest.NextPID(t, pid)
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // It was killed.
	})
	if cmd.Process.Pid != pid {
		t.Fatalf("pid %d was used by another process", pid)
	}
	return procfs.Command(t.Context(), pid)
}

// A connection that the client has closed is not accepted; an open one is, with and without a request.
func TestHungUp(t *testing.T) {
	raw, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	dial := func() net.Conn {
		c, err := net.Dial("unix", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for range 3 {
		dial().Close()
	}
	wrote, silent := dial(), dial()
	defer wrote.Close()
	defer silent.Close()
	if _, err := wrote.Write([]byte("G")); err != nil {
		t.Fatal(err)
	}
	l, err := NewCappedListener(raw, func(*Peer) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, client := range []string{"with a request", "without a request"} {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Read(make([]byte, 1))
		if output := n == 1; output != (client == "with a request") || !output && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: read %d, %v", client, n, err)
		}
	}
}

// A connection that is replaced is in use by another goroutine, which does not run now. The next connection is accepted nevertheless.
func TestReplacedConnectionIsNotAwaited(t *testing.T) {
	l := listenUnix(t)
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := &cappedConn{Conn: &passed.Conn{UnixConn: accepted.(*net.UnixConn)}, l: &cappedListener{}, peer: &Peer{}}
	c.end.Store(c.UnixConn)
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	inUse, release, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		_ = raw.Control(func(uintptr) {
			close(inUse)
			<-release
		})
	}()
	<-inUse
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.shutDown()
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("ending the connection waits for its reader")
	}
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the client read %d, %v, want the end", n, err)
	}
	close(release)
	<-left
	<-ended
}
