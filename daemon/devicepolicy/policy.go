package devicepolicy

import (
	"sync/atomic"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// Policy says which device may be opened by whom.
type Policy struct {
	*report.Reporter
	HostRoot       string
	CDIDir         string
	State          *state.State
	Port           cgroup.Port
	Observer       *observe.Observer
	Table          *lease.Table
	Logins         *LoginFilter // keeps logins from managed GPUs
	MPS            *mps.Supervisor
	Hosts          *isolation.HostCache
	adopted        atomic.Pointer[[]string] // the cgroups of units that run and that the spec adopts; nil: not known yet
	CDI            CDI
	UnknownOutcome unknownOutcome
	Slices         atomic.Pointer[planner.DesiredSlices]
	Scopes         scopeRules
	// sliceUse is who uses which slice now, and what of.
	SliceUse func(node *observe.Node) map[cgroup.SliceName]isolation.Use
}
