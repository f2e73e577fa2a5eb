package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/step"
)

// KindMigration is the kind of step that denies tenants to have processes moved out of leases, or allows it again.
const KindMigration = "bus.policy"

// migrationArgs are the arguments, and the undo, of such a step.
type migrationArgs struct {
	Deny bool `json:"deny"`
}

// denies tells whether moving processes out of leases is to be denied, and not only detected.
func (d *desired) denies() bool {
	return d.spec != nil && d.spec.Node.Walls != nil && d.spec.Node.Walls.Migration == "deny"
}

// migrationCost is what denying costs, for doctor and whoever asks why something fails.
const migrationCost = "tenants cannot make scopes of their own from an ssh login ('systemd-run --user --scope', tmux and screen where they do that) nor run rootless podman with its systemd cgroups there; from inside their own user services they can"

// migrationPolicy carries out the steps of kind KindMigration.
type migrationPolicy struct{ d *Changes }

var errNoBus = errors.New("cannot set a bus policy: no service manager runs here")

// Applied reads the policy back.
func (h migrationPolicy) Applied(_ context.Context, s step.Step) (bool, error) {
	p, want, err := h.args(s.Args)
	if err != nil {
		return false, err
	}
	is, err := p.MigrationDenied()
	return is == want.Deny, err
}

// Do sets it. Doing it twice is doing it once.
func (h migrationPolicy) Do(ctx context.Context, s step.Step) error { return h.set(ctx, s.Args) }

// Undo puts back what was before.
func (h migrationPolicy) Undo(ctx context.Context, s step.Step) error { return h.set(ctx, s.Undo) }

func (h migrationPolicy) set(ctx context.Context, args json.RawMessage) error {
	p, want, err := h.args(args)
	if err != nil {
		return err
	}
	if want.Deny {
		return p.DenyMigration(ctx)
	}
	return p.AllowMigration(ctx)
}

func (h migrationPolicy) args(b json.RawMessage) (cgroup.Migration, migrationArgs, error) {
	var a migrationArgs
	p := h.d.port.Abilities().Migration
	if p == nil {
		return nil, a, errNoBus
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, a, fmt.Errorf("cannot read the arguments of a step: %w", err)
	}
	return p, a, nil
}

// judgeMigration says where denying is asked for and not done.
func (d *Converger) judgeMigration(want *desired, lacks map[string]api.Condition) {
	if !want.enforcing() || !want.denies() {
		return
	}
	p := d.port.Abilities().Migration
	if p == nil {
		if !d.port.Info().Slices {
			lacks["migration"] = api.Condition{Message: "nobody is kept from leaving a lease on " + adapterText(d.port.Info()), Hint: "run gpushared as root on a host with cgroup v2"}
		}
		return
	}
	if is, err := p.MigrationDenied(); err != nil {
		lacks["migration"] = api.Condition{Message: "whether moving processes out of leases is denied cannot be seen: " + err.Error(), Hint: "it is detected all the same"}
	} else if !is && d.state.Changing() == nil {
		lacks["migration"] = api.Condition{Message: "moving processes out of leases is not denied", Hint: "it is detected all the same; see the journal of gpushared for why"}
	}
}
