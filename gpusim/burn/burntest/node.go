package burntest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/internal/durable"
)

// Node serves contexts of one GPU below its own host root.
type Node struct {
	Root   string // the host root, for GPUSIM_ROOT
	Engine *engine.Engine
	ctx    context.Context
	wait   sync.WaitGroup

	mu       sync.Mutex // guards what follows
	memory   uint64
	used     uint64
	requests []Request
	lines    map[int]string // the CTX line of each process that has a context
	conns    map[net.Conn]struct{}
}

// Request is one line of a process after its CTX line.
type Request struct {
	At   time.Time
	Line string
}

// Requests returns the requests of all processes in order.
func (n *Node) Requests() []Request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.requests)
}

// Start serves until the test ends. The device nodes are regular files.
func Start(tb testing.TB) *Node {
	tb.Helper()
	// A short path: the path of a socket has at most 107 bytes, and TempDir contains the name of the test.
	root, err := os.MkdirTemp("", "node-")
	if err != nil {
		tb.Fatal(err)
	}
	n := &Node{
		Root:   root,
		Engine: engine.New(engine.SystemClock{}),
		memory: 40 << 30,
		lines:  map[int]string{},
		conns:  map[net.Conn]struct{}{},
	}
	for _, dir := range []string{"dev/nvidia-caps", "run/gpusim", "usr/bin"} {
		if err := durable.MakeDirectories(filepath.Join(root, dir), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	for _, f := range []string{"nvidiactl", "nvidia-uvm", "nvidia0"} {
		if err := os.WriteFile(filepath.Join(root, "dev", f), nil, 0o666); err != nil {
			tb.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(root, "run/gpusim/cuda.sock"))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.ctx = ctx
	n.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			n.conns[c] = struct{}{}
			n.mu.Unlock()
			n.wait.Go(func() { n.serve(c) })
		}
	})
	tb.Cleanup(func() {
		cancel()
		l.Close()
		n.mu.Lock()
		for c := range n.conns {
			c.Close()
		}
		n.mu.Unlock()
		n.wait.Wait()
		n.Engine.Close()
		os.RemoveAll(root)
	})
	return n
}

// Contexts returns the CTX line of each process that has a context.
func (n *Node) Contexts() map[int]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[int]string, len(n.lines))
	for pid, line := range n.lines {
		out[pid] = line
	}
	return out
}

// SetMemory changes how many bytes all contexts together may allocate; 40 GiB at the start.
func (n *Node) SetMemory(bytes uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.memory = bytes
}

// Used returns the allocated memory in bytes.
func (n *Node) Used() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.used
}

func (n *Node) serve(c net.Conn) {
	var cctx *engine.Context
	var allocated, limit uint64
	pid := peer(c)
	defer func() {
		c.Close()
		n.mu.Lock()
		n.used -= allocated
		delete(n.lines, pid)
		delete(n.conns, c)
		n.mu.Unlock()
		if cctx != nil {
			cctx.Close()
		}
	}()
	in := bufio.NewScanner(c)
	for in.Scan() {
		answer := "OK"
		words := strings.Fields(in.Text())
		num := func(i int) uint64 {
			if i >= len(words) {
				return 0
			}
			v, _ := strconv.ParseUint(words[i], 10, 64)
			return v
		}
		switch {
		case len(words) == 0:
			answer = "ERR 1 invalid value"
		case words[0] == "CTX":
			arg := map[string]string{}
			for _, w := range words[1:] {
				k, v, _ := strings.Cut(w, "=")
				arg[k] = v
			}
			if arg["gpu"] == "nope" {
				answer = "ERR 100 no CUDA-capable device is detected"
				break
			}
			limit, _ = strconv.ParseUint(arg["limit"], 10, 64)
			o := engine.Options{}
			if share, err := strconv.ParseFloat(arg["share"], 64); err == nil {
				o.Share = share / 100
			}
			group := ""
			if arg["mpspid"] != "0" {
				group = "mps " + arg["mpspid"]
			}
			cctx = n.Engine.AddContext(pid, group, o)
			n.mu.Lock()
			n.lines[pid] = in.Text()
			n.mu.Unlock()
			answer = "OK 0 - -"
		case cctx == nil:
			answer = "ERR 201 invalid device context"
		default:
			n.mu.Lock()
			n.requests = append(n.requests, Request{time.Now(), in.Text()})
			n.mu.Unlock()
		}
		switch {
		case cctx == nil || words[0] == "CTX":
		case words[0] == "QUEUE":
			cctx.SetDepth(int(num(1)))
		case words[0] == "ALLOC":
			n.mu.Lock()
			if n.used+num(1) > n.memory || (limit > 0 && allocated+num(1) > limit) {
				answer = "ERR 2 out of memory"
			} else {
				n.used += num(1)
				allocated += num(1)
			}
			n.mu.Unlock()
		case words[0] == "LAUNCH":
			// The error is ignored: the context is closed or the test ends.
			_ = cctx.Launch(n.ctx, time.Duration(num(1))*time.Microsecond, int(num(2)))
		case words[0] == "SYNC":
			_ = cctx.Sync(n.ctx)
		default:
			answer = "ERR 1 invalid value"
		}
		if _, err := fmt.Fprintln(c, answer); err != nil {
			return
		}
	}
}

func peer(c net.Conn) int {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
