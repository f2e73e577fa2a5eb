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

// helperService is the unit in which nvidia-modprobe runs: one at a time.
const helperService = "gpushare-device-nodes"

// unitHelper runs a program as a unit of its own: the sandbox of the daemon's unit allows no device nodes and no modules.
func unitHelper(a *systemd.Adapter) devicepolicy.Helper {
	return func(ctx context.Context, argv []string) error {
		err := a.StartService(
			ctx, systemd.Service{Name: helperService, Description: "gpushare: device nodes of the driver", Argv: argv, Type: "oneshot"},
		)
		if errors.Is(err, systemd.ErrExists) { // of a call, or of a daemon, that ended before its program did
			return fmt.Errorf("%w: %w", devicepolicy.ErrHelperRuns, err)
		}
		return err
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
