package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Launcher starts worker processes. Exec is one; a host with systemd starts them as units of their own.
type Launcher interface {
	// Launch starts argv with exactly env. name is unique and valid as a unit name. ctx bounds the start only: the
	// process continues after it.
	Launch(ctx context.Context, name string, argv, env []string) (Process, error)
}

// Process is one worker process.
type Process interface {
	// PID is the process id, 0 when the launcher does not know it.
	PID() int
	// Done is closed when the process has ended.
	Done() <-chan struct{}
	// Kill sends SIGKILL and does not wait: a process in a hung driver call may never end.
	Kill() error
}

// Exec launches workers as detached processes in a session of their own, so that a signal to the daemon's process
// group does not reach them.
type Exec struct {
	// Stderr receives what workers print; nil discards it.
	Stderr *os.File
}

// Launch starts argv.
func (e Exec) Launch(ctx context.Context, name string, argv, env []string) (Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("cannot launch %s: %w", name, err)
	}
	if len(argv) == 0 {
		return nil, fmt.Errorf("cannot launch %s: no command", name)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{}, env...) // nil would mean the daemon's environment
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if e.Stderr != nil {
		cmd.Stdout, cmd.Stderr = e.Stderr, e.Stderr
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot launch %s: %w", name, err)
	}
	p := &execProcess{cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process
		defer close(p.done)
		_ = cmd.Wait() // the broken connection reports the end
	}()
	return p, nil
}

// execProcess is a child process of the daemon.
type execProcess struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *execProcess) PID() int              { return p.cmd.Process.Pid }
func (p *execProcess) Done() <-chan struct{} { return p.done }

func (p *execProcess) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot kill pid %d (gpushare-nvml): %w", p.PID(), err)
	}
	return nil
}
