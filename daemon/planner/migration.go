package planner

// KindMigration is the kind of step that denies tenants to have processes moved out of leases, or allows it again.
const KindMigration = "bus.policy"

// MigrationArgs are the arguments, and the undo, of such a step.
type MigrationArgs struct {
	Deny bool `json:"deny"`
}

// MigrationCost is what denying costs, for doctor and whoever asks why something fails.
const MigrationCost = "tenants cannot make scopes of their own from an ssh login ('systemd-run --user --scope', tmux and screen where they do that) nor run rootless podman with its systemd cgroups there; from inside their own user services they can"
