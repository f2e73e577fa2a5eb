package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/tracing"
)

func TestMain(m *testing.M) {
	tracing.Main()
	goleak.VerifyTestMain(m)
}

// spawn starts a command that ends with the test.
func spawn(t *testing.T, name string, args ...string) Process {
	t.Helper()
	return start(t, exec.Command(name, args...))
}

// spawnWaiting starts a shell script that waits for release, so that it can be put into its scope first.
func spawnWaiting(t *testing.T, script string) (p Process, release func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "read x; "+script)
	cmd.Stdin = r
	p = start(t, cmd)
	r.Close()
	t.Cleanup(func() { w.Close() })
	return p, func() { w.Close() }
}

func start(t *testing.T, cmd *exec.Cmd) Process {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start %s: %v", cmd.Path, err)
	}
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		_ = cmd.Wait() // the error says that it was killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-reaped
	})
	return Process{PID: cmd.Process.Pid, Start: start}
}

// newTree creates a Tree in a subtree of the host's hierarchy, for this test only.
func newTree(tb testing.TB) *Tree {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root to create cgroups")
	}
	h, err := FindHierarchy()
	if err != nil {
		tb.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	if !h.Writable() {
		tb.Skipf("needs a writable cgroup v2 hierarchy, not %s", h.Mount)
	}
	tree, err := NewTree(TreeOptions{Subtree: subtree(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := tree.Destroy(ctx); err != nil {
			tb.Errorf("cannot clean up %s: %v", tree.Top(), err)
		}
	})
	return tree
}

func subtree(tb testing.TB) string {
	h := uint32(0)
	for _, c := range tb.Name() {
		h = h*31 + uint32(c)
	}
	return fmt.Sprintf("gpushare-test-%d-%x", os.Getpid(), h)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls a condition that the operating system has no event for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		pause(time.Millisecond)
	}
}
