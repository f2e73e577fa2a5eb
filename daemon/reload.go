package daemon

import (
	"context"
	"net/http"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/observe"
)

// postReload reads the settings that can change while the daemon runs, and converges once before it answers.
func (d *Daemon) postReload(c *server.Call) error {
	waiting, err := d.reload()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout+30*time.Second)
	defer cancel()
	d.observer.Observe(ctx)
	d.converger.Drift.CheckScopesNow()
	if err := d.converger.Correct(ctx); err != nil {
		return &api.Error{Kind: api.KindDegraded, Message: "the settings are in force, but not all drift could be corrected: " + err.Error(), Hint: "see 'gpushare status'"}
	}
	d.converger.Refresh(ctx, d.observer.Last())
	d.wakeConverge() // A change of its own restores what a reset or a reload of the driver removed.
	return c.Reply(http.StatusOK, map[string]any{"reloaded": true, "needs_restart": waiting})
}
