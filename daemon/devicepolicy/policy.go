package devicepolicy

import (
	"sync/atomic"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// Policy decides which devices may be opened by which processes.
type Policy struct {
	*report.Reporter
	HostRoot       string
	CDIDir         string
	State          *state.State
	Port           cgroup.Port
	Observer       *observe.Observer
	Table          *lease.Table
	Logins         *LoginFilter // denies managed GPUs to logins
	MPS            controlDaemons
	Hosts          *isolation.HostCache
	adopted        atomic.Pointer[[]string] // the cgroups of adopted units that run; nil: not known yet
	CDI            CDI
	UnknownOutcome unknownOutcome
	Units          loop.Wake // a unit that is closed as logins are was started
	Helper         Helper    // makes device nodes; nil: nothing does
	Changed        func()    // a device node of the host came or went; it does not wait
	Slices         atomic.Pointer[planner.DesiredSlices]
	Scopes         scopeRules
	nodes          nodeMaker
	// SliceUse returns what is in use of each slice.
	SliceUse func(node *observe.Node) map[cgroup.SliceName]isolation.Use
}
