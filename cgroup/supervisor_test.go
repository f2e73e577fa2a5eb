package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
)

// supervised starts a program and a supervisor that runs a script.
func supervised(t *testing.T, tree *Tree, script string) (program, supervisor Process) {
	t.Helper()
	run := func(dir *os.File, args ...string) Process {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		return start(t, cmd)
	}
	_, program, err := tree.StartProgram(
		within(t, 20*time.Second),
		Scope{ID: "p1", Slice: SliceName{Tenant: "red", Grant: "dev"}},
		func(_ context.Context, at, next *os.File) (Process, error) {
			supervisor = run(next, "sh", "-c", script)
			return run(at, "sleep", "60"), nil
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	return program, supervisor
}

// A supervisor is in the scope's cgroup and no member of the scope: it is not frozen with it, and the scope is empty without it. It
// ends before the scope has ended.
func TestSupervisorsEndWithTheirScope(t *testing.T) {
	enumeration.Long(t)
	const ignores = "trap '' TERM; sleep 600; true"
	for _, c := range []struct {
		name, script string
		end          func(t *testing.T, tree *Tree, program Process) *Tree // and the tree afterwards
	}{
		{"by itself, when the scope is empty", "exec sleep 2", func(t *testing.T, tree *Tree, p Process) *Tree {
			if err := errors.Join(signal(context.Background(), p, syscall.SIGKILL), tree.WaitEmpty(within(t, 30*time.Second), "p1")); err != nil {
				t.Error(err)
			}
			return tree
		}},
		{"killed, when the scope is empty", ignores, func(t *testing.T, tree *Tree, p Process) *Tree {
			if err := errors.Join(signal(context.Background(), p, syscall.SIGKILL), tree.WaitEmpty(within(t, 30*time.Second), "p1")); err != nil {
				t.Error(err)
			}
			return tree
		}},
		{"when the scope is killed", ignores, func(t *testing.T, tree *Tree, _ Process) *Tree {
			if err := tree.KillScope(within(t, 30*time.Second), "p1"); err != nil {
				t.Error(err)
			}
			return tree
		}},
		{"when the next daemon starts", ignores, func(t *testing.T, tree *Tree, p Process) *Tree {
			if err := errors.Join(signal(context.Background(), p, syscall.SIGKILL), tree.h.WaitEmpty(within(t, 30*time.Second), path.Join(tree.slicePath(SliceName{Tenant: "red", Grant: "dev"}), "p1"+scopeSuffix, inner))); err != nil {
				t.Error(err)
			}
			again, err := NewTree(TreeOptions{Mount: tree.h.Mount, Subtree: path.Base(tree.top)})
			if err != nil {
				t.Fatal(err)
			}
			return again
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tree := newTree(t)
			program, supervisor := supervised(t, tree, c.script)
			leaf, err := tree.Leaf("p1")
			if err != nil {
				t.Fatal(err)
			}
			if at, err := procfs.Cgroup(supervisor.PID); err != nil || at != path.Join(path.Dir(leaf), supervising) {
				t.Errorf("the supervisor is in %s: %v", at, err)
			}
			if members, err := tree.Members(t.Context(), "p1"); err != nil || len(members) != 1 || members[0] != program {
				t.Errorf("its members are %v: %v", members, err)
			}
			if id, ok := tree.ScopeOf(supervisor.PID); ok || len(tree.PIDIndex()) != 1 {
				t.Errorf("the supervisor is a process of %q, and of the processes are %v", id, tree.PIDIndex())
			}
			scope := path.Dir(leaf)
			tree = c.end(t, tree, program)
			if procfs.Alive(supervisor.PID, supervisor.Start) {
				t.Error("the supervisor outlives the scope")
			}
			if tree.h.Exists(scope) {
				t.Error("the scope's cgroup is left")
			}
		})
	}
}

// Freezing a scope does not freeze its supervisor, and a scope with nothing but a supervisor is none.
func TestSupervisorsAreNotFrozen(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	tree := newTree(t)
	program, supervisor := supervised(t, tree, "exec sleep 60")
	if err := tree.Freeze(within(t, 20*time.Second), "p1"); err != nil {
		t.Fatal(err)
	}
	at, err := procfs.Cgroup(supervisor.PID)
	if err != nil {
		t.Fatal(err)
	}
	if frozen, err := tree.freezer.Frozen(at); err != nil || frozen {
		t.Errorf("the supervisor is frozen: %t %v", frozen, err)
	}
	if err := errors.Join(
		tree.Thaw(t.Context(), "p1"), signal(context.Background(), program, syscall.SIGKILL),
		tree.h.WaitEmpty(within(t, 20*time.Second), path.Join(path.Dir(at), inner)),
	); err != nil {
		t.Fatal(err)
	}
	if left, err := tree.Scopes(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("scopes with a supervisor alone: %v %v", left, err)
	}
	if err := tree.KillScope(within(t, 30*time.Second), "p1"); err != nil {
		t.Error(err)
	}
}

// A supervisor whose processes cannot be listed does not keep the daemon from starting.
func TestASupervisorThatCannotBeReadStopsNoStart(t *testing.T) {
	t.Parallel()
	tree := newTree(t)
	if _, err := tree.SetSlice(t.Context(), Slice{Name: SliceName{Tenant: "red", Grant: "dev"}}); err != nil {
		t.Fatal(err)
	}
	dir := tree.h.Dir(path.Join(tree.slicePath(SliceName{Tenant: "red", Grant: "dev"}), "p1"+scopeSuffix))
	// Its list of processes cannot be read: it is a directory.
	broken := t.TempDir()
	if err := errors.Join(
		os.Mkdir(dir, 0o755), os.Mkdir(dir+"/"+inner, 0o755), os.Mkdir(dir+"/"+supervising, 0o755),
		os.Mkdir(broken+"/cgroup.procs", 0o755),
	); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(broken, dir+"/"+supervising, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("needs root and the right to mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir+"/"+supervising, unix.MNT_DETACH) }) // It may have been removed.
	if _, err := NewTree(TreeOptions{Mount: tree.h.Mount, Subtree: path.Base(tree.top)}); err != nil {
		t.Error(err)
	}
}
