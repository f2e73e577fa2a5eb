package server_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/gpusim/server"
)

// sockets serves a node without a host root: no compiler is needed.
func sockets(t *testing.T, file string) (*gpusim.Node, string) {
	t.Helper()
	f, err := nodefile.Decode([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	n, err := gpusim.New(f.Config, engine.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	root, ctx := t.TempDir(), t.Context()
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- server.New(n, slog.New(slog.NewTextHandler(io.Discard, nil))).Serve(ctx, root, func() { close(ready) })
	}()
	<-ready
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
		n.Close()
	})
	return n, root
}

// cuda is one context's connection.
type cuda struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dialCUDA(t *testing.T, root string) *cuda {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(server.Dir(root), server.CUDASocket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &cuda{t, conn, bufio.NewReader(conn)}
}

func (c *cuda) say(line, want string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.conn, line); err != nil {
		c.t.Fatal(err)
	}
	if got, err := c.in.ReadString('\n'); err != nil || strings.TrimSpace(got) != want {
		c.t.Fatalf("%s: %q (%v), want %q", line, got, err, want)
	}
}

func TestContextLines(t *testing.T) {
	n, root := sockets(t, `gpus: [{model: A30-24GB}, {model: A30-24GB, layout: [2g.12gb@2]}]`)
	c := dialCUDA(t, root)
	c.say("ALLOC 1", "ERR 201 invalid device context")
	c.say("CTX gpu=7 mps=- mpspid=0 limit=0", "ERR 101 invalid device ordinal")
	c.say("CTX gpu=0 nonsense=1", "ERR 1 invalid request")
	c.say("CTX gpu=0 mps=- mpspid=0 limit=1073741824", "OK 0 - -")
	c.say("CTX gpu=0", "ERR 1 invalid request")
	c.say("ALLOC 104857600", "OK")
	c.say("ALLOC 1073741824", "ERR 2 out of memory")
	c.say("FREE 1048576", "OK")
	c.say("QUEUE 10", "OK")
	c.say("LAUNCH 1000 10", "OK")
	c.say("SYNC", "OK")
	c.say("LAUNCH -1 10", "ERR 1 invalid request")
	c.say("", "ERR 1 invalid request")
	v := n.View(0).GPUs[0]
	if len(v.Processes) != 1 || v.Processes[0].PID != os.Getpid() || v.Memory.Used != (300+99)*gpusim.MiB {
		t.Errorf("%+v, %d used", v.Processes, v.Memory.Used)
	}
	if busy := v.Busy[os.Getpid()]; busy < 0.009 || busy > 0.011 {
		t.Errorf("busy for %v s, want 0.01", busy)
	}
	mig := dialCUDA(t, root)
	// 3 + 135·minor + 9·gi for id 2, the upper half of the grid.
	mig.say("CTX gpu=1 mps=- mpspid=0 limit=0", "OK 1 156 157")
}

func TestTheEndOfAConnectionIsTheEndOfItsContext(t *testing.T) {
	n, root := sockets(t, `gpus: [{model: A30-24GB}]`)
	c := dialCUDA(t, root)
	c.say("CTX gpu=0", "OK 0 - -")
	c.say("QUEUE 1000000", "OK")
	c.say("LAUNCH 1000000 1000", "OK")
	// A launch that waits for the queue does not keep the context open either.
	if _, err := fmt.Fprintln(c.conn, "LAUNCH 1000000 1000000"); err != nil {
		t.Fatal(err)
	}
	_ = c.conn.Close()
	eventually(t, func() error {
		if m := n.View(0).GPUs[0].Memory; m.Used != 0 {
			return fmt.Errorf("%d used", m.Used)
		}
		return nil
	})
}

func TestContextsReportTheirEnd(t *testing.T) {
	n, root := sockets(t, `gpus: [{model: A30-24GB}]`)
	c := dialCUDA(t, root)
	c.say("CTX gpu=0", "OK 0 - -")
	if err := n.XID("0", 31, os.Getpid(), "test"); err != nil {
		t.Fatal(err)
	}
	c.say("ALLOC 1", "ERR 709 context is destroyed")
	c.say("SYNC", "ERR 709 context is destroyed")
	other := dialCUDA(t, root)
	other.say("CTX gpu=0", "OK 0 - -")
	if _, err := server.Control(t.Context(), root, server.Command{Do: server.DoReboot}); err != nil {
		t.Fatal(err)
	}
	if line, err := other.in.ReadString('\n'); err != io.EOF {
		t.Errorf("after a reboot: %q, %v", line, err)
	}
}

func TestCommands(t *testing.T) {
	n, root := sockets(t, `gpus: [{model: A30-24GB}]`)
	control := func(o server.Command) server.Result {
		t.Helper()
		a, err := server.Control(t.Context(), root, o)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		return a
	}
	id := control(server.Command{Do: server.DoFaultAdd, Fault: &gpusim.Fault{Call: "any", Do: gpusim.FaultFail}}).ID
	if faults := control(server.Command{Do: server.DoFaultList}).Faults; len(faults) != 1 || faults[0].ID != id || faults[0].Nth != 1 {
		t.Errorf("faults %+v", faults)
	}
	control(server.Command{Do: server.DoFaultClear, ID: id})
	if len(n.Faults()) != 0 {
		t.Error("the fault was not removed")
	}
	control(server.Command{Do: server.DoLatency, Call: "nvmlDeviceSetMigMode", Latency: time.Second})
	if got := control(server.Command{Do: server.DoLatency}).Latency["DeviceSetMigMode"]; got != time.Second {
		t.Errorf("latency %v", got)
	}
	control(server.Command{Do: server.DoXID, GPU: "0", XID: 95})
	if s := control(server.Command{Do: server.DoStatus}).Status; s.GPUs[0].Recovery != 1 || s.BootID == "" {
		t.Errorf("status %+v", s)
	}
	control(server.Command{Do: server.DoReset, GPU: "0"})
	control(server.Command{Do: server.DoDriverReload})
	if v := n.View(0); v.Loads != 2 || v.GPUs[0].Recovery != 0 {
		t.Errorf("after a reset and a reload: %+v", v)
	}
	for _, o := range []server.Command{{Do: "dance"}, {Do: server.DoFaultAdd}, {Do: server.DoReset, GPU: "9"}, {Do: server.DoXID, GPU: "9", XID: 1}} {
		if _, err := server.Control(t.Context(), root, o); err == nil {
			t.Errorf("%+v was executed", o)
		}
	}
}
