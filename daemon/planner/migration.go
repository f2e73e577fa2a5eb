package planner

// KindMigration is the kind of step that denies moving processes out of leases over D-Bus, or allows it again.
const KindMigration = "bus.policy"

// MigrationArgs are the arguments and the undo data of such a step.
type MigrationArgs struct {
	Deny bool `json:"deny"`
}

// MigrationCost is what tenants lose when moving processes is denied. Doctor shows it.
const MigrationCost = "tenants cannot create scopes of their own from an ssh login ('systemd-run --user --scope', tmux and screen where they do that) nor run rootless podman with its systemd cgroups there; from inside their own user services they can"
