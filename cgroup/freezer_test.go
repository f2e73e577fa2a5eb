package cgroup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/procfs"
)

// syncBuffer is a log that a test reads while another goroutine writes it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// runThawWatchdog runs a ThawWatchdog until the returned function stops it, and waits until it has its lock.
func runThawWatchdog(t *testing.T, runDir string, freezer KernelFreezer, log io.Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	th := &ThawWatchdog{RunDir: runDir, Freezer: freezer, Log: slog.New(slog.NewTextHandler(log, nil))}
	go func() { done <- th.Run(ctx) }()
	eventually(t, "the thaw watchdog has its lock", func() bool {
		held, err := lockHeld(filepath.Join(runDir, lockFile))
		return err == nil && held
	})
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the thaw watchdog ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func newTestFreezer(t *testing.T, tree *Tree, runDir string, thawAfter time.Duration) *Freezer {
	t.Helper()
	g, err := NewFreezer(tree, FreezerOptions{RunDir: runDir, ThawAfter: thawAfter})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func deadlines(t *testing.T, runDir string) int {
	t.Helper()
	root, err := os.OpenRoot(filepath.Join(runDir, frozenDir))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	names, err := deadlineNames(root)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestFreezerNeedsTheThawWatchdog(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	g := newTestFreezer(t, tree, dir, time.Minute)
	if err := g.Freeze(t.Context(), "l-1"); !errors.Is(err, ErrNoThawWatchdog) {
		t.Fatalf("a freeze without gpushare-thaw: %v", err)
	}
	if frozen, err := g.Frozen("l-1"); err != nil || frozen {
		t.Errorf("frozen %v, %v", frozen, err)
	}
	stop := runThawWatchdog(t, dir, tree.freezer, io.Discard)
	for range 3 { // the second and third move the deadline
		if err := g.Freeze(t.Context(), "l-1"); err != nil {
			t.Fatal(err)
		}
	}
	if n := deadlines(t, dir); n != 1 {
		t.Errorf("%d deadlines for one frozen scope", n)
	}
	if err := g.Thaw(t.Context(), "l-1"); err != nil {
		t.Fatal(err)
	}
	if n := deadlines(t, dir); n != 0 {
		t.Errorf("%d deadlines when no scope is frozen", n)
	}
	stop()
	if err := g.Freeze(t.Context(), "l-1"); !errors.Is(err, ErrNoThawWatchdog) {
		t.Errorf("a freeze after gpushare-thaw ended: %v", err)
	}
}

func TestThawWatchdogThawsWhatExpired(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	var log syncBuffer
	runThawWatchdog(t, dir, tree.freezer, &log)
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	g := newTestFreezer(t, tree, dir, 50*time.Millisecond)
	if err := g.Freeze(t.Context(), "l-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the scope is thawed and its deadline removed", func() bool {
		frozen, err := tree.Frozen("l-1")
		return err == nil && !frozen && deadlines(t, dir) == 0
	})
	if !strings.Contains(log.String(), "deadline has passed") || !strings.Contains(log.String(), "scope=l-1") {
		t.Errorf("the log says %q", log.String())
	}
}

func TestThawWatchdogThawsAfterADeadFreezerAndAtItsEnd(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	ctx := t.Context()
	var log syncBuffer
	stop := runThawWatchdog(t, dir, tree.freezer, &log)
	daemon := spawn(t, "sleep", "60")
	mine, theirs := newTestFreezer(t, tree, dir, time.Hour), newTestFreezer(t, tree, dir, time.Hour)
	theirs.self = daemon
	for id, g := range map[string]*Freezer{"l-1": mine, "l-2": theirs} {
		if _, err := tree.StartScope(ctx, train(id, spawn(t, "sleep", "60"))); err != nil {
			t.Fatal(err)
		}
		if err := g.Freeze(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := signal(daemon, 9); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the scope that the killed daemon froze is thawed", func() bool {
		frozen, err := tree.Frozen("l-2")
		return err == nil && !frozen
	})
	if frozen, err := tree.Frozen("l-1"); err != nil || !frozen {
		t.Errorf("the scope that the other daemon froze: frozen %v, %v", frozen, err)
	}
	stop()
	if frozen, err := tree.Frozen("l-1"); err != nil || frozen {
		t.Errorf("after the thaw watchdog ended: frozen %v, %v", frozen, err)
	}
	if n := deadlines(t, dir); n != 0 {
		t.Errorf("%d deadlines left", n)
	}
	for _, want := range []string{"process that froze it has exited", "gpushare-thaw is stopping"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
}

func TestThawWatchdogAtStart(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	ctx := t.Context()
	frozen := filepath.Join(dir, frozenDir)
	if err := os.MkdirAll(frozen, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.StartScope(ctx, train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	leaf, err := tree.Leaf("l-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Freeze(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	boot, err := procfs.BootID("/")
	if err != nil {
		t.Fatal(err)
	}
	// What a daemon leaves when it is killed while gpushare-thaw does not run, and invalid files.
	d := deadline{Cgroup: leaf, Until: int64(procfs.BootTime() + time.Hour), Boot: boot, By: Process{PID: 1 << 30, Start: 1}}
	if _, err := d.write(frozen, "l-1"); err != nil {
		t.Fatal(err)
	}
	d.Cgroup = "/nowhere/at/all"
	if _, err := d.write(frozen, "l-2"); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty": "", "half": `{"cgroup":"/x`, "root": `{"cgroup":"/","boot":"b","by":{"PID":1}}`, "up": `{"cgroup":"/../../etc","boot":"b","by":{"PID":1}}`,
	} {
		if err := os.WriteFile(filepath.Join(frozen, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(frozen, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(frozen, "link")); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	runThawWatchdog(t, dir, tree.freezer, &log)
	eventually(t, "the scope is thawed", func() bool {
		is, err := tree.Frozen("l-1")
		return err == nil && !is
	})
	eventually(t, "only unreadable files are left", func() bool { return deadlines(t, dir) == 6 })
	warnings := func() int { return strings.Count(log.String(), "the file is ignored") }
	eventually(t, "there is a warning for each bad file", func() bool { return warnings() >= 6 })
	// Another pass, because of a valid file, repeats no warning.
	if _, err := d.write(frozen, "l-3"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the third deadline is removed", func() bool { return deadlines(t, dir) == 6 })
	if n := warnings(); n != 6 {
		t.Errorf("%d warnings for 6 bad files:\n%s", n, log.String())
	}
}

func TestOnlyOneThawWatchdog(t *testing.T) {
	dir := t.TempDir()
	runThawWatchdog(t, dir, KernelFreezer{Root: t.TempDir()}, io.Discard)
	second := &ThawWatchdog{RunDir: dir, Freezer: KernelFreezer{Root: t.TempDir()}, Log: slog.New(slog.DiscardHandler)}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another gpushare-thaw") {
		t.Errorf("a second thaw watchdog: %v", err)
	}
}

func TestThawWatchdogEndsWithItsDirectory(t *testing.T) {
	dir := t.TempDir()
	done := make(chan error, 1)
	th := &ThawWatchdog{RunDir: dir, Freezer: KernelFreezer{Root: t.TempDir()}, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- th.Run(t.Context()) }()
	eventually(t, "it has its lock", func() bool {
		held, err := lockHeld(filepath.Join(dir, lockFile))
		return err == nil && held
	})
	if err := os.Remove(filepath.Join(dir, frozenDir)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("it ended without an error")
		}
	case <-time.After(10 * time.Second):
		t.Error("it continues without its directory")
	}
	if held, err := lockHeld(filepath.Join(dir, lockFile)); err != nil || held {
		t.Errorf("the lock of the ended thaw watchdog: locked %v, %v", held, err)
	}
}
