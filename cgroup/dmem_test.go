package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeTree is a directory with the controller files of these cgroups. It does not act on what is written: it shows what is
// written where.
func fakeTree(t *testing.T, controllers string, cgs ...string) Hierarchy {
	t.Helper()
	h := Hierarchy{Mount: t.TempDir()}
	for _, cg := range cgs {
		if err := os.MkdirAll(h.Dir(cg), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"cgroup.controllers": controllers, "cgroup.subtree_control": ""} {
			if err := os.WriteFile(filepath.Join(h.Dir(cg), file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return h
}

func TestEnableController(t *testing.T) {
	h := fakeTree(t, "cpu dmem\n", "/", "/a", "/a/b", "/a/b/run")
	read := func(cg string) string {
		b, err := os.ReadFile(filepath.Join(h.Dir(cg), "cgroup.subtree_control"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	wrote, err := h.EnableController("/a/b/run", DmemController)
	if !wrote || err != nil {
		t.Errorf("%v, %v", wrote, err)
	}
	for cg, want := range map[string]string{"/": "+dmem", "/a": "+dmem", "/a/b": "+dmem", "/a/b/run": ""} {
		if got := read(cg); got != want {
			t.Errorf("in %s %q was written, want %q", cg, got, want)
		}
		// As the kernel reports it.
		if err := os.WriteFile(
			filepath.Join(h.Dir(cg), "cgroup.subtree_control"), []byte(strings.TrimPrefix(want, "+")), 0o644,
		); err != nil {
			t.Fatal(err)
		}
	}
	if wrote, err := h.EnableController("/a/b/run", DmemController); wrote || err != nil {
		t.Errorf("the second time: %v, %v", wrote, err)
	}
	// A reload of the service manager disables it in one cgroup.
	if err := os.WriteFile(filepath.Join(h.Dir("/a"), "cgroup.subtree_control"), []byte("cpu\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if wrote, err := h.EnableController("/a/b/run", DmemController); !wrote || err != nil || read("/a") != "+dmem" {
		t.Errorf("after a reload: %v, %v, %q", wrote, err, read("/a"))
	}
	old := fakeTree(t, "cpu\n", "/", "/a")
	if wrote, err := old.EnableController("/a", DmemController); wrote || !errors.Is(err, ErrNotSupported) {
		t.Errorf("a kernel without it: %v, %v", wrote, err)
	}
	if wrote, err := h.EnableController("/", DmemController); wrote || err != nil {
		t.Errorf("the root needs nothing above it: %v, %v", wrote, err)
	}
}

// TestEnableControllerInTheKernel enables a controller that this kernel has, above a cgroup that has a child with a process.
func TestEnableControllerInTheKernel(t *testing.T) {
	h, err := FindHierarchy()
	if err != nil {
		t.Skip("no cgroup v2 hierarchy is mounted: ", err)
	}
	if os.Geteuid() != 0 || !h.Writable() {
		t.Skip("enabling a controller needs root and a writable cgroup v2 hierarchy")
	}
	all, err := h.Controllers()
	if err != nil {
		t.Fatal(err)
	}
	on, err := readWords(h.Mount, "cgroup.subtree_control")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(c string) bool { return c != "cpuset" && !slices.Contains(on, c) })
	if i < 0 {
		t.Skip("the kernel offers no controller that is not enabled already")
	}
	c := all[i]
	top := "/gpushare-test-enable"
	leaf := top + "/a/run"
	t.Cleanup(func() {
		for _, cg := range []string{leaf, top + "/a", top} {
			if err := os.Remove(h.Dir(cg)); err != nil {
				t.Error(err)
			}
		}
		if err := writeFile(filepath.Join(h.Mount, "cgroup.subtree_control"), "-"+c); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(h.Dir(leaf), 0o755); err != nil {
		t.Fatal(err)
	}
	if wrote, err := h.EnableController(leaf, c); !wrote || err != nil {
		t.Fatalf("%s: %v, %v", c, wrote, err)
	}
	if is, err := readWords(h.Dir(leaf), "cgroup.controllers"); err != nil || !slices.Contains(is, c) {
		t.Errorf("the cgroup has %v, %v; want %s", is, err, c)
	}
	if wrote, err := h.EnableController(leaf, c); wrote || err != nil {
		t.Errorf("the second time: %v, %v", wrote, err)
	}
}

func TestHasDmemLimit(t *testing.T) {
	for text, want := range map[string]bool{
		"":                       false,
		"drm/0000:07:00.0 max\n": false,
		"drm/0000:07:00.0 max\ndrm/0000:0f:00.0 8589934592\n": true,
	} {
		h := Hierarchy{Mount: t.TempDir()}
		if err := os.Mkdir(h.Dir("/a"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.Dir("/a"), "dmem.max"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := h.HasDmemLimit("/a"); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if (Hierarchy{Mount: t.TempDir()}).HasDmemLimit("/a") {
		t.Error("a cgroup that does not exist has a limit")
	}
}
