package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup/device"
)

// gpuNodes creates nodes of the NVIDIA major, which has no driver here: opening one returns ENXIO when the rules allow
// it, and EPERM when they deny it.
func gpuNodes(t *testing.T, n int) string {
	t.Helper()
	if b, _ := os.ReadFile("/proc/devices"); strings.Contains(string(b), "195 nvidia") {
		t.Skip("needs a host without the NVIDIA driver: its devices would be opened")
	}
	dir := t.TempDir()
	for i := range n {
		path := filepath.Join(dir, fmt.Sprintf("nvidia%d", i))
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(i)))); err != nil {
			t.Skipf("needs device nodes: %v", err)
		}
	}
	return dir
}

func gpuRules(minors ...uint32) []DeviceRule {
	var rules []DeviceRule
	for _, m := range minors {
		rules = append(rules, DeviceRule{Type: 'c', Major: 195, Minor: m, Access: "rw", Name: fmt.Sprintf("/dev/nvidia%d", m)})
	}
	return rules
}

func treeWithDevices(t *testing.T) *Tree {
	t.Helper()
	tree := newTree(t)
	if i := tree.Info(); !i.Devices {
		t.Skipf("needs device programs: %s", i.NoDevices)
	}
	return tree
}

// opens reports for each node whether a new process in the scope may open it.
func opens(t *testing.T, tree *Tree, s Scope, nodes string) string {
	t.Helper()
	said := filepath.Join(t.TempDir(), "said")
	p, release := spawnWaiting(t, fmt.Sprintf(`for n in %s/nvidia*; do
		case $( (exec 3<>$n) 2>&1) in *"such device"*) echo allowed;; *permitted*) echo denied;; *) echo odd;; esac
	done >%s.new; mv %s.new %s; sleep 60`, nodes, said, said, said))
	s.Process = p
	if _, err := tree.StartScope(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	release()
	eventually(t, "the process in "+s.ID+" has tried all nodes", func() bool {
		_, err := os.Stat(said)
		return err == nil
	})
	b, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

func TestTreeRestrictsLeases(t *testing.T) {
	tree, nodes := treeWithDevices(t), gpuNodes(t, 3)
	ctx := within(t, 30*time.Second)
	want := Slice{Name: SliceName{Tenant: "vision"}, Closed: true, Devices: gpuRules(1, 0)}
	if wrote, err := tree.SetSlice(ctx, want); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	if wrote, err := tree.SetSlice(ctx, want); err != nil || wrote {
		t.Errorf("the same slice again: wrote %v, %v", wrote, err)
	}
	states, err := tree.Slices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(states, func(s SliceState) bool { return s.Name == want.Name })
	if i < 0 || !states[i].Matches(tree.Info().Expect(want)) {
		t.Errorf("read back %+v", states)
	}
	scope := func(id string, rules []DeviceRule) Scope {
		return Scope{ID: id, Slice: SliceName{Tenant: "vision", Grant: "train"}, Closed: true, Devices: rules}
	}
	// A lease may open what its own rules and those of its tenant allow.
	if got := opens(t, tree, scope("l-1", gpuRules(0)), nodes); got != "allowed denied denied" {
		t.Errorf("a lease on GPU 0: %s", got)
	}
	if got := opens(t, tree, scope("l-2", gpuRules(1, 2)), nodes); got != "denied allowed denied" {
		t.Errorf("a lease on GPUs 1 and 2 of a tenant with 0 and 1: %s", got)
	}
	// The rules are in the kernel and are read from there, also by another Tree.
	next, err := NewTree(TreeOptions{Subtree: subtree(t)})
	if err != nil {
		t.Fatal(err)
	}
	want.Devices = gpuRules(2)
	if wrote, err := next.SetSlice(ctx, want); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	if got := opens(t, tree, scope("l-3", gpuRules(0, 1, 2)), nodes); got != "denied denied allowed" {
		t.Errorf("a lease of a tenant with GPU 2: %s", got)
	}
	want.Closed, want.Devices = false, nil
	if wrote, err := next.SetSlice(ctx, want); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	if got := opens(t, tree, scope("l-4", gpuRules(0)), nodes); got != "allowed denied denied" {
		t.Errorf("a lease of a tenant without device rules: %s", got)
	}
}

// Another program removes the device rules: SetSlice sees it and sets them again.
func TestTreeSeesRemovedDeviceRules(t *testing.T) {
	tree := treeWithDevices(t)
	ctx := within(t, 20*time.Second)
	want := Slice{Name: SliceName{Tenant: "vision"}, Closed: true, Devices: gpuRules(0)}
	if _, err := tree.SetSlice(ctx, want); err != nil {
		t.Fatal(err)
	}
	cg := tree.h.Dir(tree.slicePath(want.Name))
	if _, err := device.RemoveRules(cg); err != nil {
		t.Fatal(err)
	}
	states, err := tree.Slices(ctx)
	if err != nil || slices.ContainsFunc(states, func(s SliceState) bool { return s.Closed }) {
		t.Errorf("read back %+v, %v", states, err)
	}
	if wrote, err := tree.SetSlice(ctx, want); err != nil || !wrote {
		t.Errorf("wrote %v, %v", wrote, err)
	}
	if _, ok, err := device.Rules(cg); !ok || err != nil {
		t.Errorf("the device rules are not set again: %v", err)
	}
}

// A scope whose device rules cannot be set does not start.
func TestTreeStartsNothingWithoutDeviceRules(t *testing.T) {
	tree := treeWithDevices(t)
	p := spawn(t, "sleep", "60")
	s := train("l-1", p)
	s.Closed, s.Devices = true, []DeviceRule{{Type: 'x', Major: 195, Access: "rw"}}
	if _, err := tree.StartScope(t.Context(), s); err == nil {
		t.Fatal("a scope with an invalid rule was started")
	}
	if _, ok := tree.ScopeOf(p.PID); ok {
		t.Error("the process is in a scope")
	}
}
