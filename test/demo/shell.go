package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// shell is a shell of the caller's on a virtual DGX A100 whose daemon knows no spec yet. The node ends with it. How the
// shell's last command ended is nobody's business here.
func (s *show) shell(ctx context.Context) error {
	// Ctrl-C is for what runs in the shell; the node's programs are in groups of their own.
	mine := make(chan os.Signal, 1)
	signal.Notify(mine, os.Interrupt)
	defer signal.Stop(mine)
	if err := s.node.Start(ctx); err != nil {
		return err
	}
	path := os.Getenv("SHELL")
	if path == "" {
		path = "/bin/sh"
	}
	fmt.Fprintf(s.out, `A virtual DGX A100, nothing of it is managed yet. This shell ends it.

  gpushare apply -f %s --check --diff     what would change
  gpushare apply -f %s
  gpushare run -t vision --grant dev -- gpusim-burn --memory 4GiB --seconds 60 &
  gpushare status
  gpusim ctl --root $GPUSIM_ROOT help             what can happen to the virtual GPUs

`, s.spec, s.spec)
	cmd := exec.Command(path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, s.out, os.Stderr, s.node.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGHUP}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("cannot run a shell: %w", err)
	}
	return nil
}
