package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fakeHierarchy is a hierarchy of plain files.
func fakeHierarchy(t *testing.T, files map[string]string) Hierarchy {
	t.Helper()
	h := Hierarchy{Mount: t.TempDir()}
	for name, text := range files {
		put(t, h, name, text)
	}
	return h
}

func put(t *testing.T, h Hierarchy, name, text string) {
	t.Helper()
	file := h.Dir(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSetOOMGroup(t *testing.T) {
	for _, c := range []struct {
		name         string
		files        map[string]string
		group, on    string
		wantsAnError bool
	}{
		{"passed on and set", map[string]string{"a/cgroup.controllers": "cpu memory pids\n", "a/cgroup.subtree_control": "", "a/b/memory.oom.group": ""}, "1", "+memory", false},
		{"passed on before", map[string]string{"a/cgroup.controllers": "memory\n", "a/cgroup.subtree_control": "pids memory\n", "a/b/memory.oom.group": ""}, "1", "pids memory\n", false},
		{"no memory controller", map[string]string{"a/cgroup.controllers": "pids\n", "a/cgroup.subtree_control": "", "a/b/memory.oom.group": ""}, "", "", false},
		{"no such cgroup", map[string]string{}, "", "", true},
		{"no memory.oom.group", map[string]string{"a/cgroup.controllers": "memory\n", "a/cgroup.subtree_control": "memory\n"}, "", "memory\n", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := fakeHierarchy(t, c.files)
			if err := h.SetOOMGroup("/a/b"); (err != nil) != c.wantsAnError {
				t.Errorf("the error is %v", err)
			}
			for name, want := range map[string]string{"/a/b/memory.oom.group": c.group, "/a/cgroup.subtree_control": c.on} {
				if b, err := os.ReadFile(h.Dir(name)); err == nil && string(b) != want {
					t.Errorf("%s is %q, want %q", name, b, want)
				}
			}
		})
	}
}

// Whether a scope was killed, from what the kernel reports before its removal and after.
func TestOOMWatcher(t *testing.T) {
	const none, one = "low 0\noom 0\noom_kill 0\noom_group_kill 0\n", "low 0\noom 0\noom_kill 2\noom_group_kill 1\n"
	for _, c := range []struct {
		name          string
		scope, slice  string // memory.events when the scope ends; empty: no event
		removed, want bool
	}{
		{"killed, and not removed", one, one, false, true},
		{"killed, and removed at once", one, one, true, true},
		{"its last process exited", "", "", false, false},
		{"its last process exited and it was removed", "", "", true, false},
		{"another scope of the slice was killed", "", one, true, false},
		{"another event, and not removed", none, one, false, false},
		{"another event, and removed", none, none, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := fakeHierarchy(t, map[string]string{"s/memory.events": none, "s/x/run/memory.events": none})
			var o OOMWatcher
			for range 2 { // the second call changes nothing
				if err := o.Watch(h, "x", "/s/x/run", "/s"); err != nil {
					t.Fatal(err)
				}
			}
			if c.slice != "" {
				put(t, h, "s/memory.events", c.slice)
			}
			if c.scope != "" {
				put(t, h, "s/x/run/memory.events", c.scope)
			}
			if c.removed {
				if err := os.RemoveAll(h.Dir("/s/x")); err != nil {
					t.Fatal(err)
				}
			}
			if got := o.Killed(h, "x", "/s/x/run", "/s"); got != c.want {
				t.Errorf("killed: %v", got)
			}
			if o.watches != nil {
				t.Error("it still watches")
			}
			if c.removed && o.Killed(h, "x", "/s/x/run", "/s") {
				t.Error("it remembers a forgotten scope")
			}
		})
	}
}

func TestOOMWatcherOfManyScopes(t *testing.T) {
	const none, one = "oom_kill 0\n", "oom_kill 1\n"
	h := fakeHierarchy(
		t, map[string]string{"s/memory.events": none, "s/a/memory.events": none, "s/b/memory.events": none, "s/c/memory.events": none},
	)
	var o OOMWatcher
	for _, id := range []string{"a", "b", "c"} {
		if err := o.Watch(h, id, "/s/"+id, "/s"); err != nil {
			t.Fatal(err)
		}
	}
	put(t, h, "s/b/memory.events", one)
	put(t, h, "s/memory.events", one)
	for _, id := range []string{"a", "b", "c"} {
		if err := os.RemoveAll(h.Dir("/s/" + id)); err != nil {
			t.Fatal(err)
		}
	}
	o.Forget("c")
	if o.Killed(h, "a", "/s/a", "/s") || !o.Killed(h, "b", "/s/b", "/s") || o.Killed(h, "c", "/s/c", "/s") {
		t.Error("want killed: only b")
	}
	// A later scope of the same name is another scope.
	put(t, h, "s/b/memory.events", none)
	if err := o.Watch(h, "b", "/s/b", "/s"); err != nil {
		t.Fatal(err)
	}
	if o.Killed(h, "b", "/s/b", "/s") || o.watches != nil {
		t.Error("the later scope of this name was reported killed")
	}
	// Without the memory controller there is nothing to watch.
	if err := o.Watch(Hierarchy{Mount: t.TempDir()}, "a", "/s/a", "/s"); err != nil || o.watches != nil {
		t.Errorf("watching nothing: %v", err)
	}
}

// The kernel's OOM killer, where the memory controller is enabled.
func TestTreeEndsAsAWhole(t *testing.T) {
	tree := newTree(t)
	name := SliceName{Tenant: "vision", Grant: "train"}
	ctx := within(t, 60*time.Second)
	if _, err := tree.SetSlice(
		ctx, Slice{Name: name, Limits: Limits{MemoryMax: new(uint64(16 << 20)), SwapMax: new(uint64(0))}},
	); err != nil {
		t.Fatal(err)
	}
	if _, ok := tree.h.oomKills(tree.slicePath(name)); !ok {
		t.Skip("needs a cgroup v2 hierarchy with the memory controller")
	}
	p, release := spawnWaiting(t, "sleep 60 & exec head -c 64000000 /dev/zero | tail")
	st, err := tree.StartScope(ctx, train("l-1", p))
	if err != nil {
		t.Fatal(err)
	}
	release()
	if err := tree.WaitEmpty(ctx, "l-1"); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("it ended: %v", err)
	}
	if tree.h.Exists(st.Path) {
		t.Error("its cgroup is left")
	}
}
