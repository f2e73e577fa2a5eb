package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// programs builds the CUDA programs and a stand-in for the library that they open.
func programs(t *testing.T) (dir string) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is missing: cannot build the CUDA programs")
	}
	dir = t.TempDir()
	for _, argv := range [][]string{
		{"gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, "alloc"), "cuda/alloc.c", "-ldl"},
		{"gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, "work"), "cuda/work.c", "-ldl"},
		{"gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o", filepath.Join(dir, "libcuda.so.1"), "cuda/standin/libcuda.c"},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
	return dir
}

// TestWorkKeepsItsQueue: the program has at most its queue of kernels launched, never none for long, and counts finished ones.
func TestWorkKeepsItsQueue(t *testing.T) {
	dir := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		name  string
		queue string
		most  uint32
	}{{"ten", "10", 10}, {"synchronous", "1", 1}} {
		progress := filepath.Join(dir, c.name)
		cmd := exec.CommandContext(ctx, filepath.Join(dir, "work"), "--progress", progress, "--queue", c.queue, "--iterations", "200000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "ready" {
			if lines.Text() != "iterations 200000" {
				t.Errorf("%s: it printed %q", c.name, lines.Text())
			}
		}
		var finished uint32
		for finished < 100 && ctx.Err() == nil {
			b, err := os.ReadFile(progress)
			if err != nil {
				t.Fatal(err)
			}
			// The number of finished kernels may grow between the two: then fewer seem to be queued.
			finished = binary.NativeEndian.Uint32(b)
			launched := binary.NativeEndian.Uint32(b[4:])
			if int32(launched-finished) > int32(c.most) {
				t.Fatalf("%s: %d are queued", c.name, launched-finished)
			}
		}
		if n, err := readProgress(progress); err != nil || n < 100 {
			t.Errorf("%s: %d finished, %v", c.name, n, err)
		}
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	}
}

func TestWorkMeasuresItsKernel(t *testing.T) {
	dir := programs(t)
	h := &realHost{dir: dir, work: filepath.Join(dir, "work"), progressDir: dir, measured: map[time.Duration]int{}}
	n, err := h.iterations(t.Context(), "GPU-0", 5*time.Millisecond)
	// The stand-in needs 10 ns for an iteration, and more on a busy machine.
	if err != nil || n < 50_000 || n > 550_000 {
		t.Errorf("%d iterations, %v", n, err)
	}
	if again, err := h.iterations(t.Context(), "GPU-0", 5*time.Millisecond); again != n || err != nil {
		t.Errorf("the second measurement differs: %d, %v", again, err)
	}
}

func TestAllocFillsMemory(t *testing.T) {
	dir := programs(t)
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "alloc"), args...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("--memory", "64", "--max", "512", "--seconds", "1"); err != nil || !strings.Contains(out, "grew to 512 MiB") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("--memory", "64", "--max", "4096", "--seconds", "1"); err == nil ||
		!strings.Contains(out, "cannot allocate more: CUDA error 2 (OUT_OF_MEMORY)") {
		t.Errorf("more than there is: %v: %s", err, out)
	}
	if out, err := run("--memory"); err == nil || !strings.Contains(out, "usage: ") {
		t.Errorf("no value: %v: %s", err, out)
	}
}
