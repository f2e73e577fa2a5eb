package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/gpushare/gpushare/test/leftover"
)

// shell starts a shell on a virtual DGX A100 whose daemon has no spec. The node ends with it. The exit code of the shell is
// ignored.
func (s *show) shell(ctx context.Context) error {
	// Ctrl-C goes to the program in the shell; the programs of the node are in other process groups.
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
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, s.out, os.Stderr, leftover.Without(s.node.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGHUP}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("cannot run a shell: %w", err)
	}
	return nil
}
