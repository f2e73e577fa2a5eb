package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
)

// workerEnv makes the test binary a worker with a fake driver; its value selects the misbehaviour.
const workerEnv = "GPUSHARE_TEST_WORKER"

func TestMain(m *testing.M) {
	if mode, ok := os.LookupEnv(workerEnv); ok {
		os.Exit(workerMain(mode, os.Args[1:]))
	}
	if pipe, ok := os.LookupEnv(clientEnv); ok {
		os.Exit(clientMain(pipe))
	}
	goleak.VerifyTestMain(m)
}

// workerMain is a worker process. In mode "hang" every reading of a GPU's profiles hangs without end; in mode "pipe:PATH" a
// reading of the memory ends when the other end of the named pipe is closed.
func workerMain(mode string, args []string) int {
	token, excluded := flags(args)
	var socket string
	for i, a := range args {
		if a == "--connect" {
			socket = args[i+1]
		}
	}
	conn, err := Dial(context.Background(), socket, token)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	n := newFakeNode(gpuA, gpuB)
	if mode == "hang" {
		hangAlways(n, OpProfiles, gpuA)
	}
	if pipe, ok := strings.CutPrefix(mode, "pipe:"); ok {
		n.hang = func(op Op, _ gpu.UUID) <-chan struct{} {
			if op == OpMemory {
				openPipe(pipe)
			}
			return nil
		}
	}
	if err := (Worker{Open: n.open(excluded...), Log: slog.New(slog.DiscardHandler)}).Serve(context.Background(), conn); err != nil {
		return 1
	}
	return 0
}

// newProcessClient returns a client with real worker processes and a real socket.
func newProcessClient(t *testing.T, mode string, d Deadlines) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpushare-worker") // short: a socket's path has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{
		Command:   []string{exe},
		Env:       []string{workerEnv + "=" + mode, "GORACE=atexit_sleep_ms=0"}, // the race detector waits a second at the end
		RunDir:    dir,
		Launcher:  Exec{Stderr: os.Stderr},
		Deadlines: d,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// process returns the live worker.
func process(t *testing.T, c *Client) Process {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		t.Fatal("no worker")
	}
	return c.current.proc
}

func TestProcess(t *testing.T) {
	c := newProcessClient(t, "", Deadlines{})
	ctx := testContext(t, 20*time.Second)
	node, err := c.Node(ctx)
	if err != nil || len(node.GPUs) != 2 {
		t.Fatalf("Node = %+v, %v", node, err)
	}
	fi, err := os.Stat(filepath.Join(c.o.RunDir, socketName))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", fi.Mode(), err)
	}
	p := process(t, c)
	sid, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	// After the command's closing bracket: state, parent, process group, session.
	if f := strings.Fields(string(sid[strings.LastIndexByte(string(sid), ')')+1:])); f[3] != fmt.Sprint(p.PID()) {
		t.Errorf("the worker is in session %s; want its own", f[3])
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		t.Error("the worker outlives the client")
	}
}

// TestWorkerKilled kills a real worker repeatedly during readings: all readings succeed.
func TestWorkerKilled(t *testing.T) {
	c := newProcessClient(t, "", Deadlines{})
	ctx := testContext(t, 60*time.Second)
	if _, err := c.Node(ctx); err != nil {
		t.Fatal(err)
	}
	open := descriptors(t)
	for i := range 5 {
		p := process(t, c)
		var calls sync.WaitGroup
		for _, id := range []gpu.UUID{gpuA, gpuB} {
			calls.Go(func() {
				for ended := false; !ended; {
					select {
					case <-p.Done():
						ended = true // once more: another worker must answer now
					default:
					}
					if _, err := c.Memory(ctx, id); err != nil {
						t.Errorf("kill %d: %v", i, err)
						return
					}
				}
			})
		}
		if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		calls.Wait()
		if q := process(t, c); q.PID() == p.PID() {
			t.Errorf("kill %d: still worker %d", i, p.PID())
		}
	}
	// The client removes the last ended worker asynchronously.
	for !hasOneWorker(c) {
		if ctx.Err() != nil {
			t.Fatal("the client still has a worker that has ended")
		}
		time.Sleep(time.Millisecond)
	}
	if now := descriptors(t); now > open {
		t.Errorf("%d descriptors are open, %d before", now, open)
	}
	if st := c.Stats(); st.Starts != 6 || st.Crashes != 5 {
		t.Errorf("%d starts and %d crashes; want 6 and 5", st.Starts, st.Crashes)
	}
}

// hasOneWorker reports whether the client has exactly one worker.
func hasOneWorker(c *Client) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.live) == 1
}

// descriptors counts the open file descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// TestStoppedProcess stops a real worker with SIGSTOP: it is killed and replaced.
func TestStoppedProcess(t *testing.T) {
	// Short, because the test waits for it, and long enough for the second worker to answer on a busy machine.
	c := newProcessClient(t, "", Deadlines{Read: time.Second})
	ctx := testContext(t, 20*time.Second)
	if _, err := c.Node(ctx); err != nil {
		t.Fatal(err)
	}
	p := process(t, c)
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitStopped(t, p.PID())
	if _, err := c.Memory(ctx, gpuA); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("stopped worker: %v; want ErrTimeout", err)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		t.Fatal("the stopped worker was not killed")
	}
	if _, err := c.Memory(ctx, gpuB); err != nil {
		t.Errorf("other GPU: %v", err)
	}
}

// awaitStopped returns when every thread of a child has stopped. After the signal is sent, a thread on another CPU still
// runs for a moment, long enough for an answer.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	if !isStopped(t, pid) {
		t.Fatalf("process %d has ended before it was stopped", pid)
	}
}

// isStopped waits until a child is stopped, and reports whether it is: false if it has ended before.
func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ECHILD) { // One that has ended can be stopped no more.
			return false
		}
		if err != nil {
			t.Fatalf("cannot wait until process %d has stopped: %v", pid, err)
		}
		return true
	}
}

// TestWorkerEndsWithItsConnection closes the connection of a worker with a hung call: the process must end.
func TestWorkerEndsWithItsConnection(t *testing.T) {
	c := newProcessClient(t, "hang", Deadlines{})
	ctx := testContext(t, 20*time.Second)
	if _, err := c.Node(ctx); err != nil {
		t.Fatal(err)
	}
	p := process(t, c)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := c.Profiles(short, gpuA); !errors.Is(err, gpu.ErrTimeout) {
		t.Fatalf("hung call: %v", err)
	}
	c.mu.Lock()
	conn := c.current.conn
	c.dropLocked(c.current, errRetired) // so that the client does not kill it
	c.mu.Unlock()
	conn.Close()
	select {
	case <-p.Done():
	case <-ctx.Done():
		t.Error("the worker outlives its connection")
	}
}

// TestRefusedConnections connects to the worker socket with invalid messages.
func TestRefusedConnections(t *testing.T) {
	c := newProcessClient(t, "", Deadlines{})
	socket := filepath.Join(c.o.RunDir, socketName)
	tests := []struct {
		name string
		send func(net.Conn) error
	}{
		{"wrong token", func(conn net.Conn) error { return writeFrame(conn, hello{Protocol: protocol, Token: "guess"}) }},
		{"wrong version", func(conn net.Conn) error { return writeFrame(conn, hello{Protocol: protocol + 1}) }},
		{"too long", func(conn net.Conn) error { _, err := conn.Write([]byte{0xff, 0xff, 0xff, 0xff}); return err }},
		{"no JSON", func(conn net.Conn) error { _, err := conn.Write([]byte{0, 0, 0, 1, 'x'}); return err }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := tt.send(conn); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read %d bytes, %v; want the connection closed", n, err)
			}
		})
	}
	if _, err := c.Node(testContext(t, 20*time.Second)); err != nil {
		t.Errorf("after refused connections: %v", err)
	}
}

func TestExec(t *testing.T) {
	t.Run("no such binary", func(t *testing.T) {
		if _, err := (Exec{}).Launch(t.Context(), "x", []string{"/no/such/worker"}, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error = %v; want one that says that it does not exist", err)
		}
	})
	t.Run("ended", func(t *testing.T) {
		p, err := Exec{}.Launch(t.Context(), "x", []string{"/bin/true"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		if err := p.Kill(); err != nil {
			t.Errorf("killing a process that has ended: %v; want no error", err)
		}
	})
}

// BenchmarkRoundTrip measures one operation over the wire, without driver time.
func BenchmarkRoundTrip(b *testing.B) {
	dir, err := os.MkdirTemp("", "gpushare-worker")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(Options{Command: []string{exe}, Env: []string{workerEnv + "="}, RunDir: dir, Launcher: Exec{}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for b.Loop() {
		if _, err := c.Memory(b.Context(), gpuA); err != nil {
			b.Fatal(err)
		}
	}
}
