package external

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	// What the program starts inherits the FIFO: it has an end when all of them have ended.
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := program(t, "slurmd", "exec 3>'"+fifo+"'\necho waiting\nsleep 1000 &\necho started >&3\nwait\n")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		f, err := os.Open(fifo)
		if err != nil {
			ended <- err
			return
		}
		defer f.Close()
		r := bufio.NewReader(f)
		_, err = r.ReadString('\n')
		cancel()
		if err == nil {
			_, err = r.ReadByte()
		}
		ended <- err
	}()
	out, err := Output(ctx, 1<<10, []string{dir}, "slurmd")
	if !errors.Is(err, context.Canceled) || out != "waiting\n" {
		t.Fatalf("%q, %v", out, err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("what it started still runs")
	}
}
