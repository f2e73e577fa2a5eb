package converge

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// keptDrifts is how many corrected differences are kept.
const keptDrifts = 16

// drift records what was changed on the node outside gpushare. It keeps the slices and filters that were last read as desired:
// drift is a difference from them while the desired state is the same. When the desired state changed it is no drift, and
// neither is what a change of gpushare wrote since then.
type drift struct {
	mu          locks.Mutex[locks.Leaf]           // guards what follows
	inSync      map[cgroup.SliceName]cgroup.Slice // slices that were as desired
	filters     map[string]syncedFilter           // by cgroup
	uncorrected map[string]api.Condition          // differences that were not corrected
	checked     time.Time                         // the scopes
	corrected   []correctedDrift                  // oldest first
}

// syncedFilter is a login filter that was as desired.
type syncedFilter struct {
	filter devices.LoginFilter
	cgroup uint64 // its id: the cgroup of a unit that was started again is another one
	writes uint64 // of gpushare until then: a lease that begins or ends writes filters
}

// correctedDrift is one corrected difference.
type correctedDrift struct {
	at   time.Time
	text string
}

// difference is one slice that was changed outside gpushare.
type difference struct {
	name cgroup.SliceName
	text string // desired → found
}

// find returns the slices that were changed outside gpushare.
func (x *drift) find(want []cgroup.Slice, is []cgroup.SliceState, info cgroup.Info) []difference {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []difference
	for _, w := range want {
		was, ok := x.inSync[w.Name]
		expected := info.Expect(w)
		if !ok || !(cgroup.SliceState{Name: was.Name, Limits: was.Limits, Closed: was.Closed, Devices: was.Devices}).Matches(expected) {
			continue // The desired state changed, with the spec or the hardware.
		}
		i := slices.IndexFunc(is, func(s cgroup.SliceState) bool { return s.Name == w.Name })
		switch {
		case i < 0:
			out = append(out, difference{w.Name, "it was removed"})
		case !is[i].Matches(expected):
			out = append(out, difference{w.Name, isolation.Difference(expected, is[i], info)})
		}
	}
	return out
}

// setInSync records which slices are as desired.
func (x *drift) setInSync(want []cgroup.Slice, is []cgroup.SliceState, info cgroup.Info) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.inSync = map[cgroup.SliceName]cgroup.Slice{}
	for _, w := range want {
		expected := info.Expect(w)
		if slices.ContainsFunc(is, func(s cgroup.SliceState) bool { return s.Matches(expected) }) {
			x.inSync[w.Name] = expected
		}
	}
}

func (x *drift) isInSync(name cgroup.SliceName) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.inSync[name]
	return ok
}

// noteCorrected records a corrected difference.
func (x *drift) noteCorrected(at time.Time, text string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.corrected = append(x.corrected, correctedDrift{at, text})
	if n := len(x.corrected) - keptDrifts; n > 0 {
		x.corrected = slices.Delete(x.corrected, 0, n)
	}
}

// history returns the corrected differences, oldest first.
func (x *drift) history() []correctedDrift {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.corrected)
}

// setUncorrected replaces the conditions of differences that were not corrected.
func (x *drift) setUncorrected(uncorrected map[string]api.Condition) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.uncorrected = uncorrected
}

func (x *drift) uncorrectedNow() map[string]api.Condition {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.uncorrected
}

// forgetWritten forgets what was in sync of the slices and login filters that the steps of a change wrote. A change restricts
// them before it destroys an instance, and one that was created at its placement, or again by an undo, has the same devices:
// the difference is the change's own.
func (x *drift) forgetWritten(steps []step.Step) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range steps {
		switch s := &steps[i]; s.Kind {
		case isolation.KindSet:
			var written cgroup.Slice
			if json.Unmarshal(s.Args, &written) == nil {
				delete(x.inSync, written.Name)
			}
		case isolation.KindRemove:
			var name cgroup.SliceName
			if json.Unmarshal(s.Args, &name) == nil {
				delete(x.inSync, name)
			}
		case isolation.KindLoginFilter:
			var written isolation.LoginFilterArgs
			if json.Unmarshal(s.Args, &written) == nil {
				delete(x.filters, written.Cgroup)
			}
		}
	}
}

// driftOf returns the slices that were changed outside gpushare; none when the desired slices are unknown.
func (cv *Converger) driftOf(want *state.Desired, node *observe.Node) []difference {
	if w := cv.desiredSlices(want, node); w != nil {
		return cv.Drift.find(w.Slices, node.Slices, cv.Port.Info())
	}
	return nil
}

func (cv *Converger) desiredSlices(want *state.Desired, node *observe.Node) *planner.DesiredSlices {
	if node.SlicesErr != nil || node.DriverErr != nil || !cv.Port.Info().Slices {
		return nil
	}
	w, err := cv.Policy.DesiredSlices(want, node, nil)
	if err != nil {
		return nil
	}
	return w
}

// reportDrift reports the corrected differences, and keeps the others as conditions. skipped are the steps that the loop has no
// authority for.
func (cv *Converger) reportDrift(want *state.Desired, found []difference, skipped []step.Step) {
	node := cv.Observer.Last()
	w := cv.desiredSlices(want, node)
	if w == nil {
		return
	}
	cv.Drift.setInSync(w.Slices, node.Slices, cv.Port.Info())
	uncorrected := map[string]api.Condition{}
	for i := range skipped {
		if s := &skipped[i]; s.Kind == isolation.KindSet || s.Kind == isolation.KindRemove {
			uncorrected[s.Text] = api.Condition{
				Message: "not corrected: " + s.Text + ", because " + s.Reason,
				Hint:    "it would disturb a lease: 'gpushare apply --force' does it",
			}
		}
	}
	for _, f := range found {
		if cv.Drift.isInSync(f.name) {
			cv.reportCorrected(f.name.Tenant, "", fmt.Sprintf("the slice of %s: %s", f.name, f.text))
		} else if len(skipped) == 0 {
			uncorrected[f.name.String()] = api.Condition{
				Tenant: f.name.Tenant,
				Message: fmt.Sprintf(
					"the slice of %s was changed from outside (desired → found: %s) and cannot be corrected", f.name, f.text,
				),
				Hint: "see the journal of gpushared",
			}
		}
	}
	cv.Drift.setUncorrected(uncorrected)
}

// reportCorrected reports one difference that was corrected.
func (cv *Converger) reportCorrected(tenant, lease, text string) {
	cv.Counters.Drifts.Add(1)
	cv.Drift.noteCorrected(cv.Now(), text)
	cv.Events.Publish(api.Event{
		Kind:    "drift.corrected",
		Tenant:  tenant,
		Lease:   lease,
		Message: "changed from outside and corrected (desired → found): " + text,
	})
	cv.Log.Warn("drift was corrected", "message_id", report.MessageDrift, "what", text)
}

// loginFilterDrift finds the login filters that were changed outside gpushare. The caller calls report after the correction.
func (cv *Converger) loginFilterDrift(want *state.Desired, node *observe.Node) (report func()) {
	none := func() {}
	if node.LoginFiltersErr != nil || node.DriverErr != nil {
		return none
	}
	states, _, err := cv.Policy.DesiredFilters(want, node, nil, cv.Table.Live())
	if err != nil {
		return none
	}
	found := cv.Drift.findFilters(states, node.LoginFilters, cv.Logins.ID, cv.Logins.Writes())
	return func() {
		after := cv.Observer.Last()
		cv.Drift.setFiltersInSync(states, after.LoginFilters)
		for cg, text := range found {
			if cv.Drift.filterInSync(cg) {
				cv.reportCorrected("", "", "the login filter of "+cg+": "+text)
			}
		}
	}
}

// findFilters returns the filters that were changed outside gpushare. writes is asked after is was read: of a filter that gpushare wrote in
// between is has the former one.
func (x *drift) findFilters(want, is []devices.LoginFilterState, id func(cg string) uint64, writes uint64) map[string]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[string]string{}
	for _, w := range want {
		was, ok := x.filters[w.Cgroup]
		if !ok || was.writes != writes || !was.filter.Equal(w.Filter) || was.cgroup != id(w.Cgroup) {
			continue
		}
		i := slices.IndexFunc(is, func(s devices.LoginFilterState) bool { return s.Cgroup == w.Cgroup })
		switch {
		case i < 0:
			out[w.Cgroup] = "it was removed"
		case !is[i].Filter.Equal(w.Filter):
			out[w.Cgroup] = "it denied other devices, or had other exceptions"
		}
	}
	return out
}

// setFiltersInSync keeps the filters that were read as desired, with the cgroups from which they were read: one of them may be gone,
// and another at its path.
func (x *drift) setFiltersInSync(want, is []devices.LoginFilterState) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.filters = map[string]syncedFilter{}
	for _, w := range want {
		if i := slices.IndexFunc(
			is, func(s devices.LoginFilterState) bool { return s.Cgroup == w.Cgroup && s.Filter.Equal(w.Filter) },
		); i >= 0 {
			x.filters[w.Cgroup] = syncedFilter{w.Filter, is[i].ID, is[i].Writes}
		}
	}
}

func (x *drift) filterInSync(cg string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.filters[cg]
	return ok
}

// correctScopes keeps the device rules of leases as the host needs them. A difference from what was set last is drift; what the host got
// or lost since then is none. The rules of a lease that a previous run of the daemon started are those of its scope.
func (cv *Converger) correctScopes(ctx context.Context, node *observe.Node) {
	port := cv.Port.Abilities().ScopeDevices
	if port == nil || !cv.Drift.scopesDue(cv.Now()) {
		return
	}
	live := map[string]bool{}
	for _, l := range cv.Table.Live() {
		if l.InPlace() || l.Isolation.Cgroup == "" || l.State != lease.Running {
			continue
		}
		live[l.ID] = true
		if err := cv.correctScope(ctx, port, node, &l); err != nil && ctx.Err() == nil {
			cv.Log.Warn("cannot verify the device rules of a lease", "lease", l.ID, "error", err)
		}
	}
	cv.Policy.Scopes.Keep(live)
}

func (cv *Converger) correctScope(ctx context.Context, port cgroup.ScopeDevices, node *observe.Node, l *lease.Lease) error {
	closed, is, err := port.ScopeDeviceRules(ctx, l.ID)
	if err != nil {
		return err
	}
	set, known := cv.Policy.Scopes.Get(l.ID)
	switch {
	case !known && closed:
		set = is
	case !known: // It was removed from outside, or never set.
		if set, _, err = cv.Policy.DeviceRules(node, l); err != nil {
			return err
		}
	}
	want, err := cv.Policy.ScopeRules(node, l, set)
	if err != nil {
		return err
	}
	name := state.SliceOf(l)
	info := cv.Port.Info()
	expect := func(rules []cgroup.DeviceRule) cgroup.Slice {
		return info.Expect(cgroup.Slice{Name: name, Closed: true, Devices: rules})
	}
	found := cgroup.SliceState{Name: name, Closed: closed, Devices: is}
	if !found.Matches(expect(want)) {
		if err := port.SetScopeDeviceRules(ctx, l.ID, want); err != nil {
			return err
		}
		cv.Counters.SliceWrites.Add(1)
		cv.Log.Info("the device rules of a lease were set", "lease", l.ID, "change", isolation.Difference(expect(want), found, info))
	}
	cv.Policy.Scopes.Set(l.ID, want)
	if (known || !closed) && !found.Matches(expect(set)) {
		cv.reportCorrected(
			l.Terms.Tenant, l.ID, fmt.Sprintf("the devices of lease %s: %s", l.ID, isolation.Difference(expect(set), found, info)),
		)
	}
	return nil
}

// scopesInterval is the minimum time between two checks of the scopes. Many leases may start or end at once and wake the loop;
// each check is a request to the service manager for every lease.
const scopesInterval = time.Second

func (x *drift) scopesDue(now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.Sub(x.checked) < scopesInterval {
		return false
	}
	x.checked = now
	return true
}

// CheckScopesNow makes the next pass check the scopes: an administrator requested it.
func (x *drift) CheckScopesNow() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.checked = time.Time{}
}

// LastDrift is the last corrected difference and its time; the zero time without one.
func (cv *Converger) LastDrift() (at time.Time, text string) {
	all := cv.Drift.history()
	if len(all) == 0 {
		return at, ""
	}
	last := all[len(all)-1]
	return last.at, last.text
}

// addForeignSlices adds the conditions for slices that gpushare does not manage.
func (cv *Converger) addForeignSlices(want *state.Desired, node *observe.Node, foreign map[string]api.Condition) {
	if !want.Enforcing() || node.SlicesErr != nil {
		return
	}
	w := cv.desiredSlices(want, node)
	if w == nil {
		return
	}
	_, others := cv.State.ManagedSlices(node, w.Slices)
	for i := range others {
		foreign[others[i].Path] = api.Condition{
			Message: fmt.Sprintf("the slice of %s (%s) is not managed by gpushare", others[i].Name, others[i].Path),
			Hint:    "gpushare does not change it: its processes have the limits that its creator set",
		}
	}
}
