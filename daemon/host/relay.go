package host

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/relay"
	"github.com/gpushare/gpushare/systemd"
)

// relaySignals lets signals that a process does not take from the daemon be sent by a process without a profile of AppArmor.
func (h *Host) relaySignals(start func(context.Context, *os.File) error) {
	client := &relay.Client{Start: start}
	procfs.UseRelay(procfs.Profile(os.Getpid()), client.Signal)
	closePort := h.Close
	h.Close = func() { procfs.UseRelay("", nil); client.Close(); closePort() }
}

// unitRelay starts the relay as a unit: without new privileges, as the daemon's unit has it, no program that the daemon executes is
// without its profile.
type unitRelay struct {
	a       *systemd.Adapter
	program string // gpushare-start
}

func (u unitRelay) start(ctx context.Context, stdin *os.File) error {
	_, err := u.a.StartConfined(ctx, systemd.Confined{
		Name:         "gpushare-relay-" + rand.Text()[:8],
		Description:  "gpushare, relay of signals",
		Argv:         []string{u.program, relay.Flag},
		Env:          frontEnv(),
		Slice:        "gpushared.slice",
		Stdin:        stdin,
		Capabilities: 1 << unix.CAP_KILL,
		Memory:       relayMemory,
		Tasks:        relayTasks,
	})
	return err
}

// The limits of the unit.
const (
	relayMemory = 64 << 20
	relayTasks  = 32
)

// childRelay starts the relay as a child of the daemon. The profile lets it be executed without one.
type childRelay struct{ program string }

func (c childRelay) start(_ context.Context, stdin *os.File) error {
	cmd := exec.Command(c.program, relay.Flag)
	cmd.Env, cmd.Dir = frontEnv(), "/"
	cmd.Stdin, cmd.Stderr = stdin, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start %s: %w", c.program, err)
	}
	go func() { // ends with the process, which ends with the daemon
		_ = cmd.Wait() // only its end matters
	}()
	return nil
}
