package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/settings"
	"github.com/gpushare/gpushare/internal/observe"
)

// postReload reads the settings that can change while the daemon runs, and converges once before it answers.
func (d *Daemon) postReload(c *server.Call) error {
	going, err := server.GoOn(c.Ctx())
	if err != nil {
		return err
	}
	waiting, err := d.reload()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(going, observe.Timeout+30*time.Second)
	defer cancel()
	d.observer.Observe(ctx)
	d.converger.Drift.CheckScopesNow()
	if err := d.converger.Correct(ctx); err != nil {
		return &api.Error{
			Kind:    api.KindDegraded,
			Message: "the settings are in force, but not all drift could be corrected: " + err.Error(),
			Hint:    "see 'gpushare status'",
		}
	}
	d.converger.Refresh(ctx, d.observer.Last())
	d.wakeConverge() // A change of its own restores what a reset or a reload of the driver removed.
	applied, err := d.specs.ApplyFile(going, c.Caller.Name)
	if err != nil {
		e := &api.Error{Kind: api.KindInternal, Message: err.Error()}
		if refused, ok := errors.AsType[*api.Error](err); ok {
			e = refused
		}
		said := *e
		said.Hint = fmt.Sprintf("the settings are in force, %s was not applied; %s", d.settings.SpecFile, e.Hint)
		return &said
	}
	return c.Reply(http.StatusOK, api.Reloaded{SchemaVersion: 1, Reloaded: true, NeedsRestart: waiting, Applied: applied})
}

// reload reads the settings again. Intervals and the log level change at once; other differences need a restart, and are
// returned. Invalid settings are refused, and the old ones stay in force.
func (d *Daemon) reload() (waiting []string, err error) {
	s, err := settings.Load(d.settings.File)
	if err != nil {
		return nil, &api.Error{Kind: api.KindInvalid, Message: err.Error(), Hint: "the old settings stay in force"}
	}
	if old := d.live.tuning.Swap(s.Tuning()); *old != *s.Tuning() {
		d.wakeConverge() // The loops take the new intervals up.
	}
	if err := d.live.level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return nil, fmt.Errorf("internal error: a valid log level is refused: %w", err)
	}
	d.identities.QueryNames(d.state.Desired().Spec, server.NameWait, true)
	return d.settings.NeedRestart(&s), nil
}
