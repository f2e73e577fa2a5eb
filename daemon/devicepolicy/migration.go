package devicepolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/internal/step"
)

// MigrationPolicy carries out the steps of kind KindMigration.
type MigrationPolicy struct{ Port cgroup.Port }

var errNoBus = errors.New("cannot set a bus policy: no service manager runs on this host")

// Applied reads the policy back.
func (h MigrationPolicy) Applied(_ context.Context, s step.Step) (bool, error) {
	p, want, err := h.args(s.Args)
	if err != nil {
		return false, err
	}
	is, err := p.MigrationDenied()
	return is == want.Deny, err
}

// Do sets it. It is idempotent.
func (h MigrationPolicy) Do(ctx context.Context, s step.Step) error { return h.set(ctx, s.Args) }

// Undo restores the former policy. Without undo data it does nothing.
func (h MigrationPolicy) Undo(ctx context.Context, s step.Step) error {
	if len(s.Undo) == 0 {
		return nil
	}
	return h.set(ctx, s.Undo)
}

func (h MigrationPolicy) set(ctx context.Context, args json.RawMessage) error {
	p, want, err := h.args(args)
	if err != nil {
		return err
	}
	if want.Deny {
		return p.DenyMigration(ctx)
	}
	return p.AllowMigration(ctx)
}

func (h MigrationPolicy) args(b json.RawMessage) (cgroup.Migration, planner.MigrationArgs, error) {
	var a planner.MigrationArgs
	p := h.Port.Abilities().Migration
	if p == nil {
		return nil, a, errNoBus
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, a, fmt.Errorf("cannot read the arguments of a step: %w", err)
	}
	return p, a, nil
}
