package cgroup

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// A slice of the GPU's time makes no garbage: the cgroup of a scope is known, its processes are listed into one slice, and a thaw
// deadline is moved in place.
func TestSlicesMakeNoGarbage(t *testing.T) {
	h := cgroupOfTest(t)
	if err := os.Mkdir(filepath.Join(h.Mount, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	tree := &Tree{}
	tree.register("l-1", "/gpushare/lab/l-1")
	f, err := NewFreezer(tree, FreezerOptions{RunDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &freezableScope{id: "l-1", frozen: true}
	var lists ProcessLists
	defer lists.CloseOthers()
	for name, read := range map[string]func() error{
		"the cgroup of a scope": func() error { _, err := tree.Leaf("l-1"); return err },
		"a list of processes":   func() error { _, err := lists.Direct(h, "/a"); return err },
		"a moved deadline": func() error {
			s.until[ForTimeSlice] = procfs.BootTime() + 10*time.Second
			return f.write(s)
		},
	} {
		if err := read(); err != nil { // The first one opens files.
			t.Fatalf("%s: %v", name, err)
		}
		if got := testing.AllocsPerRun(100, func() { err = read() }); got > 0 || err != nil {
			t.Errorf("%s: %v allocations, %v; want none", name, got, err)
		}
	}
}
