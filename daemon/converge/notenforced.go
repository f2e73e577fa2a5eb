package converge

import (
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
)

// updateIsolationConditions reports what of the isolation and of MPS is not enforced.
func (cv *Converger) updateIsolationConditions(want *state.Desired, node *observe.Node) {
	conditions := map[string]api.Condition{}
	if want.Enforcing() && node.DriverErr == nil {
		cv.addIsolationConditions(want, node, conditions)
	}
	cv.addMigrationConditions(want, conditions)
	cv.Conditions.Replace("not-enforced", conditions)
	cv.updateLoginFilterConditions(want, node)
	cv.updateMPSConditions(want, node)
	cv.updateMPSProgramCondition(want, node)
}

func (cv *Converger) addIsolationConditions(want *state.Desired, node *observe.Node, conditions map[string]api.Condition) {
	info := cv.Port.Info()
	w, err := cv.Policy.DesiredSlices(want, node, nil)
	if err != nil {
		conditions["host"] = api.Condition{Message: err.Error()}
		return
	}
	for _, m := range w.Missing {
		conditions[m.Slice.String()+m.Text] = api.Condition{Tenant: m.Slice.Tenant, Message: m.Text}
	}
	// One condition for the node: one for each tenant would hide the others.
	var names []string
	for _, s := range w.Slices {
		if s.Name.Grant != "" {
			continue
		}
		for _, name := range dropped(s.Limits, info) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	where := " on " + devicepolicy.AdapterText(cv.Port.Info())
	if len(names) > 0 {
		conditions["limits"] = api.Condition{
			Message: strings.Join(names, ", ") + " limits are not enforced" + where,
			Hint:    "'gpushare tenant show' lists them; systemd with cgroup v2 enforces all of them",
		}
	}
	if len(w.Slices) > 0 && !info.Devices {
		how := where
		if info.NoDevices != "" {
			how += ": " + info.NoDevices
		}
		conditions["devices"] = api.Condition{
			Message: "device rules are not enforced" + how,
			Hint:    "only the environment restricts a tenant to its GPUs; run gpushared as root on a host with cgroup v2",
		}
	}
	timesliced := slices.ContainsFunc(node.GPUs, func(g observe.GPU) bool { return want.Mode(g.Identity.UUID) == api.ModeTimeslice })
	if err := cv.ThawReady(); timesliced && !info.Freeze {
		conditions["freeze"] = api.Condition{
			Message: "time shares are not enforced" + where,
			Hint:    "no lease can be frozen: run gpushared as root on a host with cgroup v2",
		}
	} else if timesliced && err != nil {
		conditions["freeze"] = api.Condition{
			Message: "time shares are not enforced: " + err.Error(),
			Hint:    "start gpushare-thaw: 'systemctl start gpushare-thaw'",
		}
	}
}

func dropped(l cgroup.Limits, info cgroup.Info) []string {
	_, unsupported := l.Only(info.Limits)
	return unsupported
}
