package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// mayUseCDI refuses callers to whom a CDI device is of no use: podman of a user cannot read its file.
func (a *app) mayUseCDI(ctx context.Context, tenant, grant string) error {
	info, err := a.client.Info(ctx)
	if err != nil || info.Caller.Role == "admin" {
		return err
	}
	return &api.Error{
		Kind: api.KindDenied, Message: "cannot start a container by CDI: only root can read its file, because that names tenants",
		Hint: "without root a container runs inside of a lease: " + api.RootlessContainer(tenant, grant),
	}
}

// pauseFile has the id of the process that keeps the namespaces of a user's containers, below the user's runtime directory.
const pauseFile = "libpod/tmp/pause.pid"

// warnOfPause says that podman, if it is not running yet, would leave that process in this lease, which then does not end with
// its container.
func (a *app) warnOfPause() {
	dir := fmt.Sprintf("/run/user/%d", os.Geteuid())
	for _, kv := range a.env {
		if v, ok := strings.CutPrefix(kv, "XDG_RUNTIME_DIR="); ok {
			dir = v
		}
	}
	b, _ := boundedread.Trusted(filepath.Join(dir, pauseFile), boundedread.Value) // without it there is no process
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && pid > 0 {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			return
		}
	}
	fmt.Fprintln(
		a.io.Err,
		"gpushare: warning: podman keeps a process for all containers of its user, and would start it in this lease, which then does not end with the container; start it before the lease, with 'podman unshare true'",
	)
}
