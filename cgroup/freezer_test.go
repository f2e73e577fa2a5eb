package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
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
	return run(t, &ThawWatchdog{RunDir: runDir, Freezer: freezer, Log: slog.New(slog.NewTextHandler(log, nil))})
}

func run(t *testing.T, th *ThawWatchdog) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- th.Run(ctx) }()
	eventually(t, "the thaw watchdog has its lock", func() bool {
		state, err := lockOf(filepath.Join(th.RunDir, lockFile))
		return err == nil && state.held
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

// newTestFreezer makes a freezer. Nothing runs it.
func newTestFreezer(t *testing.T, freezer LeafFreezer, runDir string) *Freezer {
	t.Helper()
	g, err := NewFreezer(freezer, FreezerOptions{RunDir: runDir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// runFreezer runs a freezer until the test ends.
func runFreezer(t *testing.T, g *Freezer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.Run(ctx, func(err error) { t.Log(err) })
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// freezeFor freezes a scope.
func freezeFor(t *testing.T, g *Freezer, id string, reason FreezeReason, d time.Duration) {
	t.Helper()
	if err := g.Freeze(t.Context(), id, reason, d); err != nil {
		t.Fatal(err)
	}
}

// isFrozen reads the state from the kernel.
func isFrozen(t *testing.T, tree *Tree, id string) bool {
	t.Helper()
	frozen, err := tree.Frozen(id)
	if err != nil {
		t.Fatal(err)
	}
	return frozen
}

// usedDeadlines counts the deadlines in the file.
func usedDeadlines(t *testing.T, runDir string) (n int) {
	t.Helper()
	file, err := openDeadlines(runDir)
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	if _, err := file.read(func(slot int, _ *slotView, _ error) {
		if slot != headerSlot {
			n++
		}
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// writeDeadlines writes slots, the header first, that are valid for a day.
func writeDeadlines(t *testing.T, runDir string, slots ...deadline) {
	t.Helper()
	boot, err := procfs.BootID("/")
	if err != nil {
		t.Fatal(err)
	}
	file, err := openDeadlines(runDir)
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	for slot, d := range slots {
		d.Until, d.Boot = wholeMilliseconds(procfs.BootTime()+24*time.Hour), boot
		if err := file.write(slot, &d); err != nil {
			t.Fatal(err)
		}
	}
}

// pidfds counts the pidfds that this process has of another: the package os keeps one of each process that it starts.
func pidfds(t *testing.T, p Process) (n int) {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range infos {
		info, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(info), fmt.Sprintf("\nPid:\t%d\n", p.PID)) { // An error: it was closed since.
			n++
		}
	}
	return n
}

func TestFreezerNeedsTheThawWatchdog(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	g := newTestFreezer(t, tree, dir)
	if err := g.Freeze(t.Context(), "l-1", ForTimeSlice, time.Minute); !errors.Is(err, ErrNoThawWatchdog) {
		t.Fatalf("a freeze without gpushare-thaw: %v", err)
	}
	if isFrozen(t, tree, "l-1") {
		t.Error("it is frozen")
	}
	stop := runThawWatchdog(t, dir, tree.freezer, io.Discard)
	for range 3 { // the second and third move the deadline
		freezeFor(t, g, "l-1", ForTimeSlice, time.Minute)
	}
	if n := usedDeadlines(t, dir); n != 1 {
		t.Errorf("%d deadlines for one frozen scope", n)
	}
	if err := g.Thaw(t.Context(), "l-1", ForTimeSlice); err != nil {
		t.Fatal(err)
	}
	if n := usedDeadlines(t, dir); n != 0 {
		t.Errorf("%d deadlines when no scope is frozen", n)
	}
	runFreezer(t, g)
	freezeFor(t, g, "l-1", ForTimeSlice, time.Minute)
	stop()
	eventually(t, "nothing is frozen after gpushare-thaw ended", func() bool {
		return errors.Is(g.Freeze(t.Context(), "l-1", ForTimeSlice, time.Minute), ErrNoThawWatchdog)
	})
	if isFrozen(t, tree, "l-1") {
		t.Error("it is frozen")
	}
}

// A scope is frozen while one reason is left.
func TestFreezeReasons(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	g := newTestFreezer(t, tree, dir)
	runFreezer(t, g)
	type do struct {
		thaw   bool
		reason FreezeReason
		d      time.Duration
		frozen bool // afterwards
	}
	for _, c := range []struct {
		name string
		do   []do
	}{
		{"a time slice does not end the administrator's freeze", []do{
			{reason: ForTimeSlice, d: time.Minute, frozen: true},
			{reason: ForAdministrator, d: Forever, frozen: true},
			{thaw: true, reason: ForTimeSlice, frozen: true},
			{thaw: true, reason: ForAdministrator},
		}},
		{"the administrator does not end a time slice's", []do{
			{reason: ForAdministrator, d: Forever, frozen: true},
			{reason: ForTimeSlice, d: time.Minute, frozen: true},
			{thaw: true, reason: ForAdministrator, frozen: true},
			{thaw: true, reason: ForTimeSlice},
		}},
		{"all reasons, and one twice", []do{
			{reason: ForGPUMemory, d: time.Minute, frozen: true},
			{reason: ForTimeSlice, d: time.Minute, frozen: true},
			{reason: ForGPUMemory, d: time.Minute, frozen: true},
			{reason: ForStop, d: time.Minute, frozen: true},
			{thaw: true, reason: ForStop, frozen: true},
			{thaw: true, reason: ForGPUMemory, frozen: true},
			{thaw: true, reason: ForGPUMemory, frozen: true},
			{thaw: true, reason: ForTimeSlice},
			{thaw: true, reason: ForTimeSlice},
		}},
		{"a reason that was not given", []do{{thaw: true, reason: ForTimeSlice}, {reason: ForGPUMemory, d: time.Minute, frozen: true}, {thaw: true, reason: ForAdministrator, frozen: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := "l-1"
			if _, err := tree.StartScope(t.Context(), train(id, spawn(t, "sleep", "60"))); err != nil {
				t.Fatal(err)
			}
			for i, x := range c.do {
				var err error
				if x.thaw {
					err = g.Thaw(t.Context(), id, x.reason)
				} else {
					err = g.Freeze(t.Context(), id, x.reason, x.d)
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := isFrozen(t, tree, id); got != x.frozen || (len(g.Reasons(id)) > 0) != x.frozen {
					t.Fatalf("after step %d: frozen %v for %v, want %v", i, got, g.Reasons(id), x.frozen)
				}
			}
			if err := tree.KillScope(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if err := g.Retain(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if n := usedDeadlines(t, dir); n != 0 {
				t.Errorf("%d deadlines after the end", n)
			}
		})
	}
}

// A long freeze outlives the time after which a process counts as stopped, and is made again when another program undoes it.
func TestALongFreezeIsKept(t *testing.T) {
	for reason, d := range map[FreezeReason]time.Duration{ForAdministrator: Forever, ForTemperature: time.Minute} {
		t.Run(reason.String(), func(t *testing.T) {
			tree, dir := newTree(t), t.TempDir()
			runThawWatchdog(t, dir, tree.freezer, io.Discard)
			g := newTestFreezer(t, tree, dir)
			runFreezer(t, g)
			if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
				t.Fatal(err)
			}
			freezeFor(t, g, "l-1", reason, d)
			for end := time.Now().Add(2 * aliveTimeout); time.Now().Before(end); pause(5 * time.Millisecond) {
				if !isFrozen(t, tree, "l-1") {
					t.Fatal("it was thawed")
				}
			}
			if err := tree.Thaw(t.Context(), "l-1"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is frozen again", func() bool { return isFrozen(t, tree, "l-1") })
		})
	}
}

// A reason passes, and Run thaws: the loop that froze it hangs.
func TestAReasonPasses(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	g := newTestFreezer(t, tree, dir)
	runFreezer(t, g)
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	freezeFor(t, g, "l-1", ForTimeSlice, 100*time.Millisecond)
	freezeFor(t, g, "l-1", ForGPUMemory, 200*time.Millisecond)
	eventually(t, "it is thawed", func() bool { return !isFrozen(t, tree, "l-1") })
	eventually(t, "its deadline is removed", func() bool { return usedDeadlines(t, dir) == 0 })
	if got := g.Reasons("l-1"); len(got) > 0 {
		t.Errorf("it is frozen for %v", got)
	}
}

// What is stopped is thawed for SIGTERM, and frozen again only before SIGKILL.
func TestStoppingEndsAllReasons(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	g := newTestFreezer(t, tree, dir)
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	freezeFor(t, g, "l-1", ForAdministrator, Forever)
	freezeFor(t, g, "l-1", ForTimeSlice, time.Minute)
	if err := g.Stopping(t.Context(), "l-1"); err != nil {
		t.Fatal(err)
	}
	if isFrozen(t, tree, "l-1") {
		t.Fatal("it is frozen")
	}
	for reason := range ForStop {
		if err := g.Freeze(t.Context(), "l-1", reason, time.Minute); !errors.Is(err, ErrStopping) || isFrozen(t, tree, "l-1") {
			t.Errorf("a freeze for %v: %v", reason, err)
		}
	}
	freezeFor(t, g, "l-1", ForStop, time.Minute)
	if !isFrozen(t, tree, "l-1") {
		t.Error("it is not frozen")
	}
}

// When the daemon ends it thaws all, and freezes nothing more.
func TestTheEndOfRunThawsAll(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	g := newTestFreezer(t, tree, dir)
	stop := runFreezer(t, g)
	for _, id := range []string{"l-1", "l-2"} {
		if _, err := tree.StartScope(t.Context(), train(id, spawn(t, "sleep", "60"))); err != nil {
			t.Fatal(err)
		}
	}
	freezeFor(t, g, "l-1", ForAdministrator, Forever)
	stop()
	if isFrozen(t, tree, "l-1") || usedDeadlines(t, dir) != 0 {
		t.Error("it is frozen after the end")
	}
	if err := g.Freeze(t.Context(), "l-2", ForTimeSlice, time.Minute); !errors.Is(err, ErrFreezerClosed) || isFrozen(t, tree, "l-2") {
		t.Errorf("a freeze after the end: %v", err)
	}
}

// A scope that is removed while it is frozen is forgotten.
func TestAFrozenScopeIsRemoved(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	var log syncBuffer
	runThawWatchdog(t, dir, tree.freezer, &log)
	g := newTestFreezer(t, tree, dir)
	runFreezer(t, g)
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	freezeFor(t, g, "l-1", ForGPUMemory, time.Minute)
	freezeFor(t, g, "l-1", ForAdministrator, Forever)
	if err := tree.KillScope(t.Context(), "l-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its deadline is removed", func() bool { return usedDeadlines(t, dir) == 0 })
	for reason := range freezeReasons {
		if err := g.Thaw(t.Context(), "l-1", reason); err != nil {
			t.Errorf("a thaw for %v: %v", reason, err)
		}
	}
	if err := g.Freeze(t.Context(), "l-1", ForTimeSlice, time.Minute); !errors.Is(err, ErrNotFound) {
		t.Errorf("a freeze of a removed scope: %v", err)
	}
	if n := usedDeadlines(t, dir); n != 0 {
		t.Errorf("%d deadlines", n)
	}
}

// The freezer does not run: the process that froze the scope counts as stopped.
func TestThawWatchdogThawsAfterAStoppedFreezer(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	var log syncBuffer
	runThawWatchdog(t, dir, tree.freezer, &log)
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	g := newTestFreezer(t, tree, dir)
	began := time.Now()
	freezeFor(t, g, "l-1", ForAdministrator, Forever)
	eventually(t, "it is thawed", func() bool { return !isFrozen(t, tree, "l-1") })
	if d := time.Since(began); d > failOpen {
		t.Errorf("it was frozen for %v", d)
	}
	eventually(t, "the log has the reason", func() bool {
		return strings.Contains(log.String(), "process that froze it does not run") && strings.Contains(log.String(), "scope=l-1")
	})
	// The process continues: it knows that the scope may be thawed, and freezes it again.
	freezeFor(t, g, "l-1", ForTimeSlice, time.Minute)
	if !isFrozen(t, tree, "l-1") {
		t.Error("it is not frozen again")
	}
}

func TestThawWatchdogThawsAfterTheDeadline(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	var log syncBuffer
	runThawWatchdog(t, dir, tree.freezer, &log)
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	g := newTestFreezer(t, tree, dir)
	freezeFor(t, g, "l-1", ForTimeSlice, 100*time.Millisecond)
	eventually(t, "it is thawed", func() bool { return !isFrozen(t, tree, "l-1") })
	eventually(t, "the log has the reason", func() bool { return strings.Contains(log.String(), "deadline has passed") })
}

// failOpen is the longest time that a scope may stay frozen after the process that froze it is killed, stopped or hangs.
const failOpen = 2 * time.Second

// The passes of this thaw watchdog and the deadlines are an hour apart, so that only the exit of the process thaws.
func TestThawWatchdogThawsAfterADeadFreezerAndAtItsEnd(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	ctx := t.Context()
	var log syncBuffer
	daemon, job := spawn(t, "sleep", "60"), spawn(t, "sleep", "60")
	if _, err := tree.StartScope(ctx, train("l-2", job)); err != nil {
		t.Fatal(err)
	}
	if err := tree.Freeze(ctx, "l-2"); err != nil {
		t.Fatal(err)
	}
	cg, err := tree.Leaf("l-2")
	if err != nil {
		t.Fatal(err)
	}
	writeDeadlines(t, dir, deadline{By: daemon}, deadline{By: daemon, Cgroup: cg, ID: "l-2"})
	slow := &ThawWatchdog{RunDir: dir, Freezer: tree.freezer, Log: slog.New(slog.NewTextHandler(&log, nil)), interval: time.Hour}
	before := pidfds(t, daemon)
	stop := run(t, slow)
	eventually(t, "the thaw watchdog follows the process that froze", func() bool { return pidfds(t, daemon) > before })
	if err := signal(context.Background(), daemon, 9); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the scope that the killed daemon froze is thawed", func() bool { return !isFrozen(t, tree, "l-2") })
	eventually(t, "its deadline is freed", func() bool { return usedDeadlines(t, dir) == 0 })
	stop()

	stop = runThawWatchdog(t, dir, tree.freezer, &log)
	mine := newTestFreezer(t, tree, dir)
	runFreezer(t, mine)
	if _, err := tree.StartScope(ctx, train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	freezeFor(t, mine, "l-1", ForAdministrator, Forever)
	stop()
	if isFrozen(t, tree, "l-1") {
		t.Error("it is frozen after the thaw watchdog ended")
	}
	for _, want := range []string{"process that froze it has exited", "gpushare-thaw is stopping"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
}

// A daemon that was killed between the pass that found it and the wait for its exit is an event too: the next pass is now.
func TestThawWatchdogSeesAnExitBeforeItFollows(t *testing.T) {
	daemon := spawn(t, "sleep", "60")
	if err := signal(context.Background(), daemon, 9); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the killed daemon has exited", func() bool { return !procfs.Alive(daemon.PID, daemon.Start) })
	e, err := newThawEvents(t.Context(), "deadlines")
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	var waited atomic.Bool
	go func() {
		if err := e.wait(time.Hour, daemon); err != nil {
			t.Error(err)
		}
		waited.Store(true)
	}()
	eventually(t, "the next pass", waited.Load)
}

// What a daemon leaves when it is killed while gpushare-thaw does not run, and invalid slots.
func TestThawWatchdogAtStart(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	ctx := t.Context()
	for _, id := range []string{"l-1", "l-2"} {
		if _, err := tree.StartScope(ctx, train(id, spawn(t, "sleep", "60"))); err != nil {
			t.Fatal(err)
		}
		if err := tree.Freeze(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	leaf := func(id string) string {
		cg, err := tree.Leaf(id)
		if err != nil {
			t.Fatal(err)
		}
		return cg
	}
	boot, err := procfs.BootID("/")
	if err != nil {
		t.Fatal(err)
	}
	self, err := thisProcess()
	if err != nil {
		t.Fatal(err)
	}
	file, err := openDeadlines(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	later, dead := procfs.BootTime()+time.Hour, Process{PID: 1 << 30, Start: 1}
	for slot, d := range []deadline{
		headerSlot: {Until: later, By: dead, Boot: boot},
		1:          {Until: later, By: dead, Boot: boot, Cgroup: leaf("l-1"), ID: "l-1"},
		2:          {Until: later, By: self, Boot: "another", Cgroup: leaf("l-2"), ID: "l-2"},
		3:          {Until: later, By: dead, Boot: boot, Cgroup: "/nowhere/at/all", ID: "l-3"},
		4:          {Until: later, By: dead, Boot: boot, Cgroup: "/", ID: "root"},
		5:          {Until: later, By: dead, Boot: boot, Cgroup: "/../../etc", ID: "up"},
		6:          {Until: later, By: dead, Boot: boot, ID: "empty"},
		7:          {Until: later, By: dead, Boot: boot, Cgroup: leaf("l-1"), ID: "damaged"},
		8:          {Until: later, By: dead, Boot: boot, Cgroup: leaf("l-1"), ID: "cut"},
	} {
		if err := file.write(slot, &d); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := file.f.WriteAt([]byte{0xff, 0xff}, 7*slotSize+slotText+3); err != nil {
		t.Fatal(err)
	}
	if err := file.f.Truncate(8*slotSize + slotText + 5); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	runThawWatchdog(t, dir, tree.freezer, &log)
	for _, id := range []string{"l-1", "l-2"} {
		eventually(t, "it is thawed", func() bool { return !isFrozen(t, tree, id) })
	}
	// Two cannot be read, and one is of a process that lives.
	eventually(t, "the other slots are freed", func() bool { return usedDeadlines(t, dir) == 3 })
	warnings := func() int { return strings.Count(log.String(), "it is ignored") }
	eventually(t, "there is a warning for each bad slot", func() bool { return warnings() >= 2 })
	// Another pass repeats no warning.
	if err := file.write(9, &deadline{Until: later, By: dead, Boot: boot, Cgroup: "/nowhere", ID: "l-9"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new deadline is freed", func() bool { return usedDeadlines(t, dir) == 3 })
	if n := warnings(); n != 2 {
		t.Errorf("%d warnings for 2 bad slots:\n%s", n, log.String())
	}
	// A new daemon takes no slot that is in use.
	g := newTestFreezer(t, tree, dir)
	freezeFor(t, g, "l-1", ForTimeSlice, time.Minute)
	if n := usedDeadlines(t, dir); n != 4 {
		t.Errorf("%d deadlines, want the 3 from before and a new one", n)
	}
}

func TestDeadlineSlots(t *testing.T) {
	d := deadline{
		Until:  1 << 40 * time.Millisecond,
		By:     Process{PID: 1 << 22, Start: 1 << 60},
		Boot:   "b",
		Cgroup: "/gpushare.slice/run",
		ID:     "l-1",
	}
	var slot [slotSize]byte
	b, err := d.encode(&slot)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeDeadline(slot[:]); err != nil || got != d {
		t.Errorf("it was read as %+v, %v", got, err)
	}
	for i := range b {
		b[i] ^= 0x10
		if got, err := decodeDeadline(slot[:]); err == nil {
			t.Errorf("byte %d is damaged, and it was read as %+v", i, got)
		}
		b[i] ^= 0x10
		if got, err := decodeDeadline(slot[:i]); err == nil {
			t.Errorf("only %d bytes, and it was read as %+v", i, got)
		}
	}
	d.Cgroup = strings.Repeat("x", slotSize)
	if _, err := d.encode(&slot); !errors.Is(err, errDeadlineLong) {
		t.Errorf("a path that is too long: %v", err)
	}
}

func TestDeadlinesAreMovedInMemory(t *testing.T) {
	dir := t.TempDir()
	file, err := openDeadlines(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	if err := file.mapSlots(); err != nil {
		t.Fatal(err)
	}
	reader, err := openDeadlines(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.close()
	is := func(slot int, want deadline) {
		t.Helper()
		if got, err := reader.readSlot(slot); err != nil || got != want {
			t.Errorf("slot %d is %+v, %v, want %+v", slot, got, err, want)
		}
	}
	d := deadline{By: Process{PID: 7, Start: 9}, Boot: "b", Cgroup: "/x", ID: "l-1"}
	for _, slot := range []int{1, 5, mappedSlots - 1, mappedSlots, mappedSlots + 3} {
		for i, put := range []func(int, *deadline) error{file.write, file.move, file.move, file.move} {
			d.Until = []time.Duration{time.Second, latest, 0, time.Millisecond}[i]
			if err := put(slot, &d); err != nil {
				t.Fatal(err)
			}
			is(slot, d)
		}
	}
	// A file that is shorter than the memory has no such page any more.
	if err := file.f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	d.Until = time.Minute
	if err := file.move(5, &d); err != nil {
		t.Fatal(err)
	}
	is(5, d)
	if n := testing.AllocsPerRun(100, func() { _ = file.move(5, &d) }); n != 0 {
		t.Errorf("%v allocations to move a deadline", n)
	}
}

func TestWholeMilliseconds(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Millisecond, time.Millisecond: time.Millisecond, time.Millisecond + 1: 2 * time.Millisecond, Forever: latest, latest: latest,
	} {
		if got := wholeMilliseconds(in); got != want {
			t.Errorf("%d ns: %d, want %d", in, got, want)
		}
	}
}

// A scheduler freezes and thaws dozens of times a second: that must not wake the loop that keeps the scopes frozen.
func TestAFreezeDoesNotWakeRun(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	g := newTestFreezer(t, tree, dir)
	for pass := range 2 {
		for range 3 {
			freezeFor(t, g, "l-1", ForTimeSlice, time.Minute)
			if err := g.Thaw(t.Context(), "l-1", ForTimeSlice); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-g.wake:
		default:
			t.Errorf("pass %d: the first freeze did not wake it", pass)
		}
		freezeFor(t, g, "l-1", ForTimeSlice, time.Minute)
		select {
		case <-g.wake:
			t.Errorf("pass %d: it is woken again", pass)
		default:
		}
		if err := g.Thaw(t.Context(), "l-1", ForTimeSlice); err != nil {
			t.Fatal(err)
		}
		g.setAwake(false) // as Run does before a pass
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

func TestThawWatchdogEndsWithItsFile(t *testing.T) {
	dir := t.TempDir()
	done := make(chan error, 1)
	th := &ThawWatchdog{RunDir: dir, Freezer: KernelFreezer{Root: t.TempDir()}, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- th.Run(t.Context()) }()
	lock := filepath.Join(dir, lockFile)
	eventually(t, "it has made a pass", func() bool {
		state, err := lockOf(lock)
		return err == nil && state.held && state.pass > 0
	})
	if err := os.Remove(filepath.Join(dir, deadlinesFile)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("it ended without an error")
		}
	case <-time.After(10 * time.Second):
		t.Error("it continues without its file")
	}
	if state, err := lockOf(lock); err != nil || state.held {
		t.Errorf("the lock of the ended thaw watchdog: %+v, %v", state, err)
	}
}

// lockOf reads the state of a lock once.
func lockOf(name string) (lockState, error) {
	l := lockReader{name: name}
	defer l.close()
	return l.read()
}

// The file is opened once while it is locked. When it is not any more, the one that has its name then is read.
func TestLockReaderKeepsTheFileOpen(t *testing.T) {
	name := filepath.Join(t.TempDir(), lockFile)
	l := lockReader{name: name}
	defer l.close()
	held := func(what string, want bool) *os.File {
		t.Helper()
		if state, err := l.read(); err != nil || state.held != want {
			t.Errorf("%s: held is %v, %v", what, state.held, err)
		}
		return l.f
	}
	held("no file", false)
	first, err := takeLock(name)
	if err != nil {
		t.Fatal(err)
	}
	if f := held("locked", true); f == nil || held("still locked", true) != f {
		t.Error("the file is opened again")
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	held("locked, without its name", true)
	first.Close()
	held("ended", false)
	second, err := takeLock(name)
	if err != nil {
		t.Fatal(err)
	}
	held("another one", true)
	second.Close()
	if held("ended too", false) != nil {
		t.Error("a file that is not locked stays open")
	}
}

// A pass over thousands of deadlines of jobs needs no memory for those that are not due: that of gpushare-thaw is limited.
func TestAPassNeedsNoMemory(t *testing.T) {
	dir := t.TempDir()
	boot, err := procfs.BootID("/")
	if err != nil {
		t.Fatal(err)
	}
	self, err := thisProcess()
	if err != nil {
		t.Fatal(err)
	}
	file, err := openDeadlines(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	const slots = 8192
	until := wholeMilliseconds(procfs.BootTime() + 24*time.Hour)
	for slot := range slots {
		d := deadline{Until: until, By: self, Boot: boot}
		if slot != headerSlot {
			d.Cgroup = fmt.Sprintf("/system.slice/slurmstepd.scope/job_7/step_0/user/task_%d", slot)
			d.ID = "l-1@" + d.Cgroup
		}
		if err := file.write(slot, &d); err != nil {
			t.Fatal(err)
		}
	}
	w := ThawWatchdog{
		RunDir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Root: "/", interval: passInterval, boot: boot, file: file,
		thawed: map[int]deadline{}, bad: map[int]bool{},
	}
	if allocs := testing.AllocsPerRun(5, func() {
		if next, by, err := w.pass(t.Context(), ""); next != passInterval || by != self || err != nil {
			t.Errorf("the next pass is in %s, of %v: %v", next, by, err)
		}
	}); allocs > slots/16 {
		t.Errorf("a pass over %d slots allocates %.0f times", slots, allocs)
	}
	if cap(file.buf) > 1<<20 {
		t.Errorf("it keeps %d bytes", cap(file.buf))
	}
}
