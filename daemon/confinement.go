package daemon

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/sandbox"
)

// unconfined returns what the kernel does not enforce for the front and the worker, as checks that found it. Conditions have the rest.
func (d *Daemon) unconfined(worker int) (found []api.Check) {
	if d.front != nil && d.front.SharesUser() {
		found = append(found, api.Check{
			Name:    "front",
			Result:  "warn",
			Message: "gpushare-front shares its user with other processes, which may end it: the user gpushare-front does not exist",
			Hint:    "useradd --system --no-create-home --shell /usr/sbin/nologin gpushare-front, and restart gpushared",
		})
	}
	if worker == 0 {
		return found
	}
	s, err := sandbox.StateOf(worker)
	if err != nil {
		return found // It has ended, or this kernel has no such restriction.
	}
	return append(found, unconfinedWorker(worker, s)...)
}

// unconfinedWorker reports what a worker that has opened the driver should not be able to do.
func unconfinedWorker(pid int, s sandbox.State) []api.Check {
	var missing []string
	if !s.NoNewPrivs {
		missing = append(missing, "it may get new privileges")
	}
	if !s.Filtered {
		missing = append(missing, "the kernel does not filter its calls")
	}
	if len(missing) == 0 {
		return nil
	}
	return []api.Check{
		{
			Name:    "worker",
			Result:  "warn",
			Message: fmt.Sprintf("pid %d (gpushare-nvml) is not confined as it should be: %s", pid, strings.Join(missing, ", and ")),
			Hint:    "'journalctl -u gpushared' has the reason; GPUs are read and changed nevertheless",
		},
	}
}
