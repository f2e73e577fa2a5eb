package host

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/systemd"
)

const (
	// helperService is the unit in which nvidia-modprobe runs: one at a time.
	helperService = "gpushare-device-nodes"
	// helperLimit is how long it runs at most, whatever becomes of the daemon. Its callers wait less.
	helperLimit = 15 * time.Second
	// helperStop bounds the stop of one whose caller no longer waits, and helperTerm what it has after SIGTERM. The next maker waits
	// for it.
	helperStop = 2 * time.Second
	helperTerm = time.Second
)

// helperUnits are the units of the service manager; *systemd.Adapter has them.
type helperUnits interface {
	StartService(ctx context.Context, s systemd.Service) error
	StopService(ctx context.Context, name string, timeout time.Duration) error
}

// unitHelper runs a program as a unit of its own: the sandbox of the daemon's unit allows no device nodes and no modules. What it has made
// when its time is over stays: the caller looks at the nodes, and not at its result.
func unitHelper(a helperUnits) devicepolicy.Helper {
	return func(ctx context.Context, argv []string) error {
		err := a.StartService(ctx, systemd.Service{
			Name:         helperService,
			Description:  "gpushare: device nodes of the driver",
			Argv:         argv,
			Type:         "oneshot",
			StartTimeout: helperLimit,
			StopTimeout:  helperTerm,
		})
		switch {
		case errors.Is(err, systemd.ErrExists): // of a daemon that ended before its program did
			return fmt.Errorf("%w: %w", devicepolicy.ErrHelperRuns, err)
		case err == nil || ctx.Err() == nil:
			return err
		}
		// The job has no one who waits for it, and its program goes on: it would make a node after the caller has found none.
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), helperStop)
		defer cancel()
		return errors.Join(err, a.StopService(stopping, helperService, helperTerm))
	}
}

// runHelper runs a program without a service manager. An ordinary user can: the vendor's program is setuid.
func runHelper(ctx context.Context, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "/", time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cannot run %s: %w", strings.Join(argv, " "), err)
	}
	return nil
}
