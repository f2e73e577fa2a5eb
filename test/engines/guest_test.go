//go:build engines

package engines

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/test/machine"
)

const (
	// wordDeadline is for the guest's first line: a kernel that is stuck in the emulator reports nothing.
	wordDeadline = 4 * time.Minute
	// offDeadline is for the power-off.
	offDeadline = 3 * time.Minute
	// outputLimit is for the output of one script; main.sh has it too.
	outputLimit = 200_000
)

// guest is a booted machine that carries out scripts.
type guest struct {
	name  string
	conn  net.Conn
	lines *boundedread.Lines
	ended chan struct{}

	mu  sync.Mutex // one script at a time
	off bool
}

// boot boots the machine and waits until it takes scripts. It is powered off at the end of the test, if the test does not do it. A kernel
// that is stuck in the emulator before its first line is booted again: nothing of gpushare ran.
func boot(t *testing.T, name string, h machine.Hardware) *guest {
	t.Helper()
	for try := 1; ; try++ {
		g, err := bootOnce(t, name, h)
		if err == nil {
			t.Cleanup(func() { g.powerOff(t) })
			return g
		}
		if try == 4 {
			t.Fatal(err)
		}
		t.Logf("boot %d: %v; booting again", try, err)
	}
}

func bootOnce(t *testing.T, name string, h machine.Hardware) (*guest, error) {
	t.Helper()
	// Not t.TempDir, whose path contains the test name: a socket path has at most 107 bytes.
	run, err := os.MkdirTemp("", "gpushare-vm")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	h.Port = filepath.Join(run, "port")
	h.Console, h.Journal = logFile(t, name+".console"), logFile(t, name+".journal")
	listener, err := net.Listen("unix", h.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := machine.Command(ctx, h)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	g := &guest{name: name, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(g.ended)
		defer cancel()
		// The machine ends with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("cannot start qemu: %v", err)
	}
	// A qemu that ends does not connect any more.
	go func() {
		<-g.ended
		listener.Close()
	}()
	began := time.Now()
	_ = listener.(*net.UnixListener).SetDeadline(began.Add(wordDeadline))
	g.conn, err = listener.Accept()
	if err != nil {
		cancel()
		<-g.ended
		return nil, fmt.Errorf("qemu does not connect: %w: %s", err, said.Bytes())
	}
	g.lines = boundedread.NewLines(g.conn, 2*outputLimit)
	_ = g.conn.SetDeadline(began.Add(wordDeadline))
	first, ok := g.lines.Next()
	if word, system, _ := strings.Cut(string(first), " "); !ok || word != "ready" {
		cancel()
		<-g.ended
		return nil, fmt.Errorf("the guest had no first line within %s but %q: %s", wordDeadline, first, said.Bytes())
	} else {
		t.Logf("%s: ready after %.0f s: %s", name, time.Since(began).Seconds(), system)
	}
	return g, nil
}

// try carries out a script within a time, and returns its output. It ends at the first command that fails.
func (g *guest) try(limit time.Duration, script string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	seconds := strconv.Itoa(int(limit.Seconds()))
	// The guest ends the script itself. The minute more is for a guest that is stuck.
	_ = g.conn.SetDeadline(time.Now().Add(limit + time.Minute))
	if _, err := g.conn.Write([]byte(seconds + " " + base64.StdEncoding.EncodeToString([]byte(script)) + "\n")); err != nil {
		return "", fmt.Errorf("the guest takes no script: %w", err)
	}
	line, ok := g.lines.Next()
	if !ok {
		return "", fmt.Errorf("the guest does not answer: %w", g.lines.Err())
	}
	code, encoded, _ := strings.Cut(string(line), " ")
	out, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("the guest answers %q: %w", line, err)
	}
	text := strings.TrimSpace(string(out))
	switch code {
	case "0":
		return text, nil
	case "124", "137":
		return text, fmt.Errorf("the script did not end within %s", limit)
	}
	return text, fmt.Errorf("the script exits with %s", code)
}

// do is try with a failure of the test.
func (g *guest) do(t *testing.T, limit time.Duration, script string) string {
	t.Helper()
	out, err := g.try(limit, script)
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, script, out)
	}
	return out
}

// powerOff ends the machine as a host is shut down. Its journal is in the logs afterwards.
func (g *guest) powerOff(t *testing.T) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.off {
		return
	}
	g.off = true
	_ = g.conn.SetDeadline(time.Now().Add(offDeadline))
	if _, err := g.conn.Write([]byte("off\n")); err != nil {
		t.Errorf("%s takes no end: %v", g.name, err)
	}
	began := time.Now()
	select {
	case <-g.ended:
		t.Logf("%s: off after %.0f s", g.name, time.Since(began).Seconds())
	case <-time.After(offDeadline):
		t.Errorf("%s is still running %s after it was to power off", g.name, offDeadline)
	}
	g.conn.Close()
}
