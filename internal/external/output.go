package external

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// ErrNoProgram is the error of a program that is not installed.
var ErrNoProgram = errors.New("it is not installed")

// closeDelay is how long the output of an ended program is still read: a process that it started may keep it open.
const closeDelay = time.Second

// Output runs a program of another scheduler until ctx ends, and returns what it printed on both of its outputs, at most limit bytes of it,
// also if it failed or was ended. dirs are searched for it.
func Output(ctx context.Context, limit int, dirs []string, name string, args ...string) (string, error) {
	program := ""
	for _, dir := range dirs {
		// Not in a relative directory: the caller may be root.
		if p := filepath.Join(dir, name); filepath.IsAbs(p) && program == "" {
			if found, err := exec.LookPath(p); err == nil {
				program = found
			}
		}
	}
	if program == "" {
		return "", fmt.Errorf("cannot run %s: %w", name, ErrNoProgram)
	}
	out := &bounded{left: limit}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, closeDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // With what it started: it is not reaped yet.
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return out.String(), fmt.Errorf("cannot run %s: it did not end in time: %w", name, ctx.Err())
	case err != nil:
		return out.String(), fmt.Errorf("cannot run %s: %w", name, err)
	}
	return out.String(), nil
}

// bounded keeps the first bytes that are written, and takes the rest without keeping it: a program that prints more ends as it would.
type bounded struct {
	left int
	b    bytes.Buffer
}

func (w *bounded) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	w.b.Write(p[:n])
	return len(p), nil
}

func (w *bounded) String() string {
	return w.b.String()
}
