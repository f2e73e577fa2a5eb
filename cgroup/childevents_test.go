package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// The kernel reports each cgroup that is created in or removed from a watched one, and one that was removed and created again is
// another.
func TestChildEvents(t *testing.T) {
	for _, c := range []struct {
		name string
		h    func(t *testing.T) Hierarchy
	}{
		{"directories", func(t *testing.T) Hierarchy { return Hierarchy{Mount: t.TempDir()} }},
		{"cgroups", cgroupOfTest},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := c.h(t)
			create := func(cg string) {
				t.Helper()
				if err := os.Mkdir(h.Dir(cg), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			remove := func(cg string) {
				t.Helper()
				if err := os.Remove(h.Dir(cg)); err != nil {
					t.Fatal(err)
				}
			}
			var e ChildEvents
			defer e.Close()
			changed := func(what, cg string, want bool) {
				t.Helper()
				if err := e.Begin(); err != nil {
					t.Fatal(err)
				}
				if got := e.Changed(h, cg); got != want {
					t.Errorf("%s: changed is %v", what, got)
				}
			}
			create("/red")
			create("/red/train")
			create("/red/serve")
			changed("the first time", "/red/train", true)
			changed("the first time, next to it", "/red/serve", true)
			changed("nothing happened", "/red/train", false)
			create("/red/train/pod")
			changed("a child was created next to it", "/red/serve", false)
			changed("a child was created", "/red/train", true)
			changed("it was reported", "/red/train", false)
			remove("/red/train/pod")
			changed("a child was removed", "/red/train", true)
			remove("/red/train")
			create("/red/train")
			changed("it was created again", "/red/train", true)
			create("/red/train/pod")
			changed("a child was created in the new one", "/red/train", true)
			changed("nothing happened in the new one", "/red/train", false)
			remove("/red/train/pod")
			remove("/red/train")
			remove("/red/serve")
			remove("/red")
			create("/red")
			create("/red/train")
			changed("the one above was created again", "/red/train", true)
			changed("nothing happened below the new one", "/red/train", false)
			create("/red/train/pod")
			changed("a child was created below the new one", "/red/train", true)
			e.Retain(h, map[string]bool{"/red": true})
			if len(e.dirs) != 2 || len(e.watches) != 2 {
				t.Errorf("%d directories and %d watches are left, want those of the cgroup and above", len(e.dirs), len(e.watches))
			}
			changed("the watch has ended", "/red/train", true)
			remove("/red/train/pod")
			remove("/red/train")
			changed("it was removed", "/red/train", true)
			changed("it is still removed", "/red/train", true)
			remove("/red")
		})
	}
}

// cgroupOfTest is a cgroup as the mount point, for tests that need no other.
func cgroupOfTest(t *testing.T) Hierarchy {
	t.Helper()
	tree := newTree(t)
	return Hierarchy{Mount: tree.Hierarchy().Dir(tree.Top())}
}

// The processes of a cgroup are read without opening its file again, and a new cgroup of the same name is not taken for the old one.
func TestProcessListsKeepFilesOpen(t *testing.T) {
	h := cgroupOfTest(t)
	dir := filepath.Join(h.Mount, "a")
	create := func() {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var l ProcessLists
	read := func(what string, opens int, pids ...int) {
		t.Helper()
		got, err := l.Direct(h, "/a")
		if err != nil || len(got) != len(pids) || len(pids) > 0 && got[0] != pids[0] {
			t.Errorf("%s: %v %v, want %v", what, got, err, pids)
		}
		if l.opens != opens {
			t.Errorf("%s: files were opened %d times, want %d", what, l.opens, opens)
		}
	}
	create()
	read("the first time", 1)
	read("again", 1)
	p, release := spawnWaiting(t, "exit")
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0); err != nil {
		t.Fatal(err)
	}
	read("with a process", 1, p.PID)
	release()
	eventually(t, "the process has left its cgroup", func() bool {
		pids, err := l.Direct(h, "/a")
		return err == nil && len(pids) == 0
	})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	create()
	read("created again", 2)
	l.CloseOthers()
	read("after it was used", 2)
	l.CloseOthers()
	l.CloseOthers()
	if len(l.open) != 0 {
		t.Errorf("%d files are open that are not read", len(l.open))
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Direct(h, "/a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a cgroup that was removed: %v", err)
	}
}
