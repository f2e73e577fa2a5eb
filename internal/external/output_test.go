package external

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/programs"
)

// program writes a script into a directory of its own.
func program(t *testing.T, name, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := programs.Write(filepath.Join(dir, name), "#!/bin/sh\n"+text); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOutput(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := program(t, "slurmd", "echo out \"$1\"; echo problem >&2; exit 3\n")
	out, err := Output(ctx, 1<<10, []string{"/nonexistent", dir}, "slurmd", "-G")
	if err == nil || !strings.Contains(out, "out -G") || !strings.Contains(out, "problem") {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := Output(ctx, 1<<10, []string{dir}, "scontrol"); !errors.Is(err, ErrNoProgram) {
		t.Errorf("a program that is not there: %v", err)
	}
	if out, err := Output(ctx, 5, []string{program(t, "slurmd", "echo 123456789\n")}, "slurmd"); err != nil || out != "12345" {
		t.Errorf("limited to 5 bytes: %q, %v", out, err)
	}
}

// No program is found by a relative directory: PATH may have one, and the caller may be root.
func TestOutputOfNoRelativeDirectory(t *testing.T) {
	dir := program(t, "slurmd", "echo no\n")
	t.Chdir(dir)
	if out, err := Output(t.Context(), 1<<10, []string{".", ""}, "slurmd"); !errors.Is(err, ErrNoProgram) {
		t.Errorf("%q, %v", out, err)
	}
}

// A program that does not end is ended with what it started, and what it printed is kept.
func TestOutputIsBoundedInTime(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	dir := program(t, "slurmd", "echo waiting\nsleep 1000 &\necho $! >"+pidFile+".new\nmv "+pidFile+".new "+pidFile+"\nwait\n")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for {
			if _, err := os.Stat(pidFile); err == nil || t.Context().Err() != nil {
				return
			}
			time.Sleep(time.Millisecond) // Between two looks.
		}
	}()
	out, err := Output(ctx, 1<<10, []string{dir}, "slurmd")
	if !errors.Is(err, context.Canceled) || out != "waiting\n" {
		t.Errorf("%q, %v", out, err)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("what it started still runs: %s", stat)
		}
	}
}
