package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// commandTimeout is for one run of the control program; it answers in milliseconds or hangs.
const commandTimeout = 5 * time.Second

// maxAnswer is more than thousands of clients need.
const maxAnswer = 1 << 20

// control speaks to one control daemon by running the control program, because the protocol below it is not published.
type control struct {
	program string // absolute path
	pipeDir string
}

// query runs one command and returns its output. The exit code says nothing (errors end with 0), so only its absence of a
// daemon is looked at; what was set must be read back.
func (c control) query(ctx context.Context, command string) ([]byte, error) {
	return c.queryWithin(ctx, command, commandTimeout)
}

func (c control) queryWithin(ctx context.Context, command string, limit time.Duration) ([]byte, error) {
	// Without a greeting the program would hang: it is not even started.
	if err := greet(ctx, c.pipeDir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, stderr, err := run(ctx, c.program, nil, environment(c.program, c.pipeDir), command+"\n")
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer to %q: %w", command, ErrUnresponsive)
	case bytes.Contains(stderr, []byte("Cannot find MPS control daemon process")):
		return nil, fmt.Errorf("cannot ask %q: %w", command, ErrNoDaemon)
	case err != nil:
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			return nil, fmt.Errorf("cannot run %s: %w", c.program, err)
		}
	}
	return out, nil
}

// version asks the program itself; it needs no daemon. Empty when the program is too old to tell.
func version(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, _, err := run(ctx, program, []string{"-v"}, environment(program, "/nonexistent"), "")
	if err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			return "", fmt.Errorf("cannot run %s: %w", program, err)
		}
	}
	v, err := parseVersion(out)
	if err != nil {
		return "", nil
	}
	return v, nil
}

// run runs the program with nothing of our environment, and kills it, by its pid and nothing else, when ctx ends.
func run(ctx context.Context, program string, args, env []string, input string) (stdout, stderr []byte, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = time.Second // for a descriptor that something it started keeps open
	var o, e limitedBuffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.Bytes(), e.Bytes(), err
}

// limitedBuffer keeps the beginning of an output and drops the rest.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if left := maxAnswer - b.Len(); left > 0 {
		b.Buffer.Write(p[:min(left, len(p))])
	}
	return len(p), nil
}

// environment is all that the control program gets. The server is found by PATH and inherits everything, and the protocol
// is said because a variable of the same name, once inherited, would win over the command line.
func environment(program, pipeDir string) []string {
	return []string{
		"PATH=" + filepath.Dir(program) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY=" + pipeDir,
		"CUDA_MPS_PROTOCOL_VERSION=2",
		"LC_ALL=C",
	}
}
