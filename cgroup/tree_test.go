package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

func TestTreeFreezes(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	p := spawn(t, "sh", "-c", "while :; do :; done")
	st, err := tree.StartScope(ctx, train("l-1", p))
	if err != nil {
		t.Fatal(err)
	}
	if want := tree.Top() + "/vision.slice/train.slice/l-1.scope/run"; st.Path != want {
		t.Errorf("path %s, want %s", st.Path, want)
	}
	for range 20 {
		if err := tree.Freeze(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		if frozen, err := tree.Frozen("l-1"); err != nil || !frozen {
			t.Fatalf("frozen %v, %v", frozen, err)
		}
		if err := tree.Thaw(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		if frozen, err := tree.Frozen("l-1"); err != nil || frozen {
			t.Fatalf("frozen %v, %v after the thaw", frozen, err)
		}
	}
	if err := tree.Freeze(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	before, err := tree.Hierarchy().InUse(st.Path)
	if err != nil {
		t.Fatal(err)
	}
	pause(30 * time.Millisecond) // a running loop would use it
	after, err := tree.Hierarchy().InUse(st.Path)
	if err != nil {
		t.Fatal(err)
	}
	if used := *after.CPU - *before.CPU; *before.CPU == 0 || used > 10*time.Millisecond {
		t.Errorf("a frozen loop used %v after %v", used, *before.CPU)
	}
	if err := tree.KillScope(ctx, "l-1"); err != nil {
		t.Fatalf("killing a frozen scope: %v", err)
	}
	if err := tree.Thaw(ctx, "l-1"); err != nil {
		t.Errorf("thawing a scope that has ended: %v", err)
	}
	if _, err := tree.Frozen("l-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the state of a scope that has ended: %v", err)
	}
	if _, err := tree.Hierarchy().InUse(st.Path); !errors.Is(err, ErrNotFound) {
		t.Errorf("the use of a scope that has ended: %v", err)
	}
}

func TestTreeScopesAreThereForTheNextTree(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	p := spawn(t, "sleep", "60")
	st, err := tree.StartScope(ctx, train("l-1", p))
	if err != nil {
		t.Fatal(err)
	}
	// What a killed daemon leaves: the directories of a scope whose process has exited.
	dead := path.Join(tree.slicePath(SliceName{Tenant: "vision"}), "l-2.scope")
	if err := os.MkdirAll(filepath.Join(tree.h.Dir(dead), "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	next, err := NewTree(TreeOptions{Subtree: subtree(t)})
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := next.ScopeOf(p.PID); !ok || id != "l-1" {
		t.Errorf("owner %q, %v", id, ok)
	}
	if got, err := next.Recover(ctx, train("l-1", p)); err != nil || got != st {
		t.Errorf("recovered %+v, %v; want %+v", got, err, st)
	}
	if next.h.Exists(dead) {
		t.Error("an empty scope was left")
	}
	if _, err := next.Recover(ctx, Scope{ID: "l-2", Slice: SliceName{Tenant: "vision"}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("recovering an empty scope: %v", err)
	}
}

func TestTreeMembersOfNestedCgroups(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	a, b := spawn(t, "sleep", "60"), spawn(t, "sleep", "60")
	st, err := tree.StartScope(ctx, train("l-1", a))
	if err != nil {
		t.Fatal(err)
	}
	// A container runtime inside the lease creates cgroups of its own.
	sub := st.Path + "/container"
	if err := os.Mkdir(tree.h.Dir(sub), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tree.h.Place(b, sub); err != nil {
		t.Fatal(err)
	}
	if id, ok := tree.ScopeOf(b.PID); !ok || id != "l-1" {
		t.Errorf("owner %q, %v", id, ok)
	}
	ps, err := tree.Members(ctx, "l-1")
	if err != nil || !slices.Contains(ps, a) || !slices.Contains(ps, b) || len(ps) != 2 {
		t.Errorf("members %v, %v; want %v and %v", ps, err, a, b)
	}
	if err := tree.Freeze(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	if err := tree.KillScope(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	if tree.h.Exists(path.Dir(st.Path)) {
		t.Error("the scope's directory is left")
	}
}

func TestVerify(t *testing.T) {
	tree := newTree(t)
	p := spawn(t, "sleep", "60")
	st, err := tree.StartScope(t.Context(), train("l-1", p))
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.h.Verify(p, st.Path); err != nil {
		t.Error(err)
	}
	if err := tree.h.Verify(p, st.Path+"x"); !errors.Is(err, ErrWrongCgroup) {
		t.Errorf("in another cgroup: %v", err)
	}
	if err := tree.h.Verify(Process{PID: p.PID, Start: p.Start + 1}, st.Path); !errors.Is(err, procfs.ErrNoProcess) {
		t.Errorf("another process of the same pid: %v", err)
	}
}

func TestKillWithoutTheKillFile(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	p, release := spawnWaiting(t, "sleep 60 & wait")
	st, err := tree.StartScope(ctx, train("l-1", p))
	if err != nil {
		t.Fatal(err)
	}
	release()
	eventually(t, "the shell has a child in the scope", func() bool {
		ps, err := tree.Members(ctx, "l-1")
		return err == nil && len(ps) == 2
	})
	if err := tree.Freeze(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	err = killAll(ctx, func() ([]Process, error) { return tree.h.Processes(st.Path) }, sigkill, func() error {
		return tree.freezer.Thaw(ctx, st.Path)
	})
	if err != nil {
		t.Fatal(err)
	}
	if busy, err := tree.h.Populated(st.Path); err != nil || busy {
		t.Errorf("populated %v, %v", busy, err)
	}
}

func TestFreezeEndsWithItsContext(t *testing.T) {
	tree := newTree(t)
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	cg := tree.slicePath(SliceName{Tenant: "vision", Grant: "train"})
	files, err := openFreezeFiles(tree.h.Dir(cg))
	if err != nil {
		t.Fatal(err)
	}
	defer files.close()
	if err := files.waitFor(over, cg, true, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a freeze that was not requested: %v", err)
	}
}

func TestKernelFreezerRefusesInvalidPaths(t *testing.T) {
	f := KernelFreezer{Root: t.TempDir()}
	for _, p := range []string{"", "/", "x", "/../x", "/a/../b", "/a/", "/a\x00b"} {
		if err := f.Freeze(t.Context(), p); err == nil {
			t.Errorf("%q was frozen", p)
		}
		if _, err := f.set(p, false); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q was written: %v", p, err)
		}
	}
}

func TestFreezerFilesAreKeptUntilTheScopeIsRemoved(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	for range 2 { // the second scope has the same cgroup path, and other files
		st, err := tree.StartScope(ctx, train("l-1", spawn(t, "sleep", "60")))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := tree.Freeze(ctx, "l-1"); err != nil {
				t.Fatal(err)
			}
			if !isFrozen(t, tree, "l-1") {
				t.Error("it is not frozen")
			}
			if err := tree.Thaw(ctx, "l-1"); err != nil {
				t.Fatal(err)
			}
		}
		if n := openFiles(t, tree.Top()); n != 2 {
			t.Errorf("%d files are open for one scope", n)
		}
		if err := tree.KillScope(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		if n := openFiles(t, tree.Top()); n != 0 {
			t.Errorf("%d files of %s are open, which was removed", n, st.Path)
		}
	}
}

// Of more cgroups than files are kept of, they are closed after each call.
func TestFilesOfTooManyCgroupsAreClosed(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	cg := tree.Top() + "/many"
	if err := mkdir(tree.h.Dir(cg)); err != nil {
		t.Fatal(err)
	}
	freezer := NewKernelFreezer(tree.h.Mount)
	for i := range mostKept {
		freezer.kept.open[strconv.Itoa(i)] = nil
	}
	for range 3 {
		if err := errors.Join(freezer.Freeze(ctx, cg), freezer.begin(cg)); err != nil {
			t.Fatal(err)
		}
		if frozen, err := freezer.Frozen(cg); !frozen || err != nil {
			t.Errorf("frozen %v, %v", frozen, err)
		}
		if err := freezer.Thaw(ctx, cg); err != nil {
			t.Fatal(err)
		}
	}
	if n := openFiles(t, tree.Top()); n != 0 {
		t.Errorf("%d files are open", n)
	}
}

func TestFreezerSeesANewCgroupOfTheSameName(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	cg := tree.Top() + "/again"
	freezer := NewKernelFreezer(tree.h.Mount)
	defer freezer.Forget(cg)
	for range 2 { // Forget is not called.
		if err := mkdir(tree.h.Dir(cg)); err != nil {
			t.Fatal(err)
		}
		if err := freezer.Freeze(ctx, cg); err != nil {
			t.Fatal(err)
		}
		if frozen, err := freezer.Frozen(cg); err != nil || !frozen {
			t.Errorf("frozen %v, %v", frozen, err)
		}
		if err := tree.h.Remove(cg); err != nil {
			t.Fatal(err)
		}
		if err := freezer.Thaw(ctx, cg); err != nil {
			t.Errorf("a thaw of a removed cgroup: %v", err)
		}
		if err := freezer.Freeze(ctx, cg); !isRemoved(err) {
			t.Errorf("a freeze of a removed cgroup: %v", err)
		}
	}
}

func TestChildren(t *testing.T) {
	tree := newTree(t)
	top := tree.Top() + "/many"
	if err := mkdir(tree.h.Dir(top)); err != nil {
		t.Fatal(err)
	}
	if got, err := tree.h.Children(top); err != nil || len(got) != 0 {
		t.Errorf("the children of an empty cgroup are %v, %v", got, err)
	}
	var want []string
	for i := range 100 { // more than one system call returns
		want = append(want, fmt.Sprintf("%s/%s%03d", top, strings.Repeat("x", 100), i))
		if err := mkdir(tree.h.Dir(want[i])); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := tree.h.Children(top); err != nil || !slices.Equal(got, want) {
		t.Errorf("the children are %v, %v", got, err)
	}
	if err := tree.h.Remove(top); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.h.Children(top); !errors.Is(err, ErrNotFound) {
		t.Errorf("the children of a cgroup that was removed: %v", err)
	}
}

// openFiles counts the files of cgroups below one that this process has open.
func openFiles(t *testing.T, below string) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		name, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.Contains(name, below+"/") && strings.Contains(name, "/cgroup.") {
			n++
		}
	}
	return n
}

func BenchmarkFreezeThaw(b *testing.B) {
	tree := newTree(b)
	st := benchScope(b, tree)
	b.ResetTimer()
	for b.Loop() {
		if err := tree.freezer.Freeze(b.Context(), st); err != nil {
			b.Fatal(err)
		}
		if err := tree.freezer.Thaw(b.Context(), st); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkScopeOf looks up the scope of a process 10 000 times, with 1000 scopes registered.
func BenchmarkScopeOf(b *testing.B) {
	var x ScopeIndex
	me := os.Getpid()
	cg, err := procfs.Cgroup(me)
	if err != nil {
		b.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	for i := range 1000 {
		x.Register("l-"+strconv.Itoa(i), "/gpushare.slice/gpushare-t.slice/l-"+strconv.Itoa(i)+".scope")
	}
	x.Register("mine", cg)
	b.ReportAllocs()
	for b.Loop() {
		for range 10_000 {
			x.ScopeOf(me)
		}
	}
}

func benchScope(b *testing.B, tree *Tree) string {
	b.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	st, err := tree.StartScope(b.Context(), train("bench", Process{PID: cmd.Process.Pid, Start: start}))
	if err != nil {
		b.Fatal(err)
	}
	return st.Path
}
