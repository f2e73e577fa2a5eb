package planner

import (
	"slices"

	"github.com/gpushare/gpushare/internal/step"
)

// KindMigration is the kind of step that denies moving processes out of leases over D-Bus, or allows it again.
const KindMigration = "bus.policy"

// MigrationArgs are the arguments and the undo data of such a step.
type MigrationArgs struct {
	Deny bool `json:"deny"`
}

// DeniesMigration reports whether one of the steps denies moving processes out of leases.
func DeniesMigration(steps []step.Step) bool {
	return slices.ContainsFunc(steps, func(s step.Step) bool { return s.Kind == KindMigration && s.Phase == step.RevokeAccess })
}
