package control

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

// commandTimeout limits one run of the control program, which answers in milliseconds or hangs.
const commandTimeout = 5 * time.Second

// maxAnswer limits an answer in bytes. It is enough for thousands of clients.
const maxAnswer = 1 << 20

// noDaemon is what the program prints where no control daemon runs.
var noDaemon = []byte("Cannot find MPS control daemon process")

// client sends commands to one control daemon by running the control program, because its protocol is not published.
type client struct {
	program string // absolute path
	pipeDir string
	greeted bool // it has just greeted: each greeting costs lines of its log
	// transcript gets the commands and their answers; nil: nothing needs it.
	transcript *strings.Builder
}

// query runs one command and returns its output. The exit code has no meaning (it is 0 on errors too), so only a missing
// daemon is detected. A setting must be read back to check it.
func (c client) query(ctx context.Context, command string) ([]byte, error) {
	return c.queryWithin(ctx, command, commandTimeout)
}

func (c client) queryWithin(ctx context.Context, command string, limit time.Duration) ([]byte, error) {
	// Without a greeting the program would hang, so it is not started.
	if !c.greeted {
		if err := greet(ctx, c.pipeDir); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, stderr, err := run(ctx, c.program, nil, environment(c.program, c.pipeDir), command+"\n")
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer to %q: %w", command, ErrUnresponsive)
	case bytes.Contains(stderr, noDaemon):
		return nil, fmt.Errorf("cannot send %q: %w", command, ErrNoDaemon)
	case err != nil:
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			return nil, fmt.Errorf("cannot run %s: %w", c.program, err)
		}
	}
	if c.transcript != nil {
		fmt.Fprintf(c.transcript, "%s\n%s\n", command, out)
	}
	return out, nil
}

// run runs the program without the environment of gpushared, and kills it when ctx ends: only this process, by its pid.
func run(ctx context.Context, program string, args, env []string, input string) (stdout, stderr []byte, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = time.Second // a process that it started may keep a descriptor open
	var o, e limitedBuffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.Bytes(), e.Bytes(), err
}

// limitedBuffer keeps the beginning of an output and discards the rest.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if left := maxAnswer - b.Len(); left > 0 {
		b.Buffer.Write(p[:min(left, len(p))])
	}
	return len(p), nil
}

// environment is the complete environment of the control program. The program finds the server by PATH, and the server
// inherits the environment. The protocol version is set because an inherited variable would override the command line.
func environment(program, pipeDir string) []string {
	return []string{
		"PATH=" + filepath.Dir(program) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY=" + pipeDir,
		"CUDA_MPS_PROTOCOL_VERSION=2",
		"LC_ALL=C",
	}
}
