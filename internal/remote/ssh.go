package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The bounds of what hosts answer.
const (
	outputLimit = 4 << 20   // of a host: a node with 16 GPUs and a hundred leases has less than a tenth
	errorLimit  = 64 << 10  // of a host, on standard error
	allLimit    = 256 << 20 // of all hosts together
)

// connectTimeout is how long ssh waits for a host that does not answer at all, if the deadline is later.
const connectTimeout = 10 * time.Second

// closeDelay is how long the output of an ended ssh is still read: older versions leave it open to what ControlPersist keeps.
const closeDelay = 2 * time.Second

// ErrNoProgram is the error of a host without ssh.
var ErrNoProgram = errors.New("cannot run ssh: it is not installed")

// The reasons for which the answer of a host is not waited for any longer.
var (
	errTooLong = fmt.Errorf("its answer has more than %d MiB", outputLimit>>20)
	errAll     = fmt.Errorf("the answers of all hosts have more than %d MiB", allLimit>>20)
)

// Query is a command for hosts.
type Query struct {
	Dirs     []string // are searched for ssh
	Env      []string // of ssh
	Command  []string // the words on the host
	Timeout  time.Duration
	Parallel int // this many hosts at once
}

// Answer is what a host answered.
type Answer struct {
	Host   string
	Output []byte
	Errors []byte // the beginning of standard error: of ssh, or of the command
	Code   int    // the exit code of ssh: that of the command, or 255
	Err    error  // why there is no exit code
}

// All runs the command on each host, some at once, and returns the answers in the order of the hosts. When ctx ends, each ssh is ended.
func (q *Query) All(ctx context.Context, hosts []string) ([]Answer, error) {
	program, err := find(q.Dirs)
	if err != nil {
		return nil, err
	}
	command, err := Quote(q.Command)
	if err != nil {
		return nil, err
	}
	answers := make([]Answer, len(hosts))
	next, all := make(chan int), &atomic.Int64{}
	all.Store(allLimit)
	var workers sync.WaitGroup
	for range max(1, min(q.Parallel, len(hosts))) {
		workers.Go(func() {
			for i := range next {
				answers[i] = q.one(ctx, program, hosts[i], command, all)
			}
		})
	}
	for i := range hosts {
		next <- i // Each host has its deadline, and with the end of ctx none waits.
	}
	close(next)
	workers.Wait()
	return answers, ctx.Err()
}

// find searches ssh in absolute directories: the caller may be root, and where they are may belong to another user.
func find(dirs []string) (string, error) {
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		if program, err := exec.LookPath(filepath.Join(dir, "ssh")); err == nil {
			return program, nil
		}
	}
	return "", ErrNoProgram
}

// one runs the command on one host.
func (q *Query) one(ctx context.Context, program, host, command string, all *atomic.Int64) Answer {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := fmt.Errorf("it did not answer within %s", q.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, q.Timeout, late)
	defer cancel()
	if ctx.Err() != nil {
		return Answer{Host: host, Err: context.Cause(ctx)}
	}
	connect := max(1, int(min(connectTimeout, q.Timeout)/time.Second))
	cmd := exec.CommandContext(
		ctx, program, "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout="+strconv.Itoa(connect), "--", host, command,
	)
	out, errs := &bounded{left: outputLimit, all: all, full: stop}, &bounded{left: errorLimit}
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = q.Env, out, errs, closeDelay
	// Programs that ssh started, such as a ProxyCommand, end with it. What ControlPersist keeps has left the group before.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	a := Answer{Host: host, Output: out.b.Bytes(), Errors: errs.b.Bytes()}
	ended, isExit := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil && (err != nil || !errors.Is(context.Cause(ctx), late)):
		a.Err = context.Cause(ctx)
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
	case isExit && ended.Exited():
		a.Code = ended.ExitCode()
	default:
		a.Err = fmt.Errorf("cannot run ssh: %w", err)
	}
	return a
}

// bounded keeps the first bytes that are written. Where full is set, more than that ends what writes them; otherwise they are read and not
// kept, so that it ends as it would.
type bounded struct {
	left int
	all  *atomic.Int64 // of all hosts
	full func(error)
	b    bytes.Buffer
}

func (w *bounded) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	switch {
	case w.full == nil:
	case n < len(p):
		w.full(errTooLong)
		return 0, errTooLong
	case w.all.Add(-int64(n)) < 0:
		w.full(errAll)
		return 0, errAll
	}
	w.left -= n
	w.b.Write(p[:n])
	return len(p), nil
}
