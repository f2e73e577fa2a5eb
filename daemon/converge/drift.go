package converge

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// keptDrifts is how many things that were mended are remembered.
const keptDrifts = 16

// drift is what was changed on the node, and not by us. To tell that from what a spec changes, it is remembered what was
// read back last as wanted: drift is a difference to that while the same is wanted.
type drift struct {
	mu      locks.Mutex[locks.Leaf]           // guards what follows
	settled map[cgroup.SliceName]cgroup.Slice // slices that were as they should be
	guards  map[string]devices.Guard          // by cgroup
	left    map[string]api.Condition          // what differs and was not mended
	looked  time.Time                         // at the scopes
	mended  []mendedDrift                     // oldest first
}

// mendedDrift is one thing that was put right.
type mendedDrift struct {
	at   time.Time
	text string
}

// difference is one slice that is not as it was and should be.
type difference struct {
	name cgroup.SliceName
	text string // what, from wanted to found
}

// find gives the slices that somebody else changed.
func (x *drift) find(want []cgroup.Slice, is []cgroup.SliceState, info cgroup.Info) []difference {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []difference
	for _, w := range want {
		was, ok := x.settled[w.Name]
		expected := info.Expect(w)
		if !ok || !(cgroup.SliceState{Name: was.Name, Limits: was.Limits, Closed: was.Closed, Devices: was.Devices}).Matches(expected) {
			continue // It is wanted otherwise than before: the spec or the hardware changed.
		}
		i := slices.IndexFunc(is, func(s cgroup.SliceState) bool { return s.Name == w.Name })
		switch {
		case i < 0:
			out = append(out, difference{w.Name, "it was taken away"})
		case !is[i].Matches(expected):
			out = append(out, difference{w.Name, isolation.Difference(expected, is[i], info)})
		}
	}
	return out
}

// settle remembers which slices are as they should be.
func (x *drift) settle(want []cgroup.Slice, is []cgroup.SliceState, info cgroup.Info) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.settled = map[cgroup.SliceName]cgroup.Slice{}
	for _, w := range want {
		expected := info.Expect(w)
		if slices.ContainsFunc(is, func(s cgroup.SliceState) bool { return s.Matches(expected) }) {
			x.settled[w.Name] = expected
		}
	}
}

func (x *drift) isSettled(name cgroup.SliceName) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.settled[name]
	return ok
}

// noteMended remembers what was put right.
func (x *drift) noteMended(at time.Time, text string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mended = append(x.mended, mendedDrift{at, text})
	if n := len(x.mended) - keptDrifts; n > 0 {
		x.mended = slices.Delete(x.mended, 0, n)
	}
}

// history gives what was put right, oldest first.
func (x *drift) history() []mendedDrift {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.mended)
}

// setLeft replaces what is not mended; leftNow gives it.
func (x *drift) setLeft(left map[string]api.Condition) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.left = left
}

func (x *drift) leftNow() map[string]api.Condition {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.left
}

// driftOf compares the slices with what was wanted and found before. Without slices, or without knowing what is wanted,
// there is nothing to say.
func (cv *Converger) driftOf(want *state.Desired, node *observe.Node) []difference {
	if w := cv.slicesKnown(want, node); w != nil {
		return cv.Drift.find(w.Slices, node.Slices, cv.Port.Info())
	}
	return nil
}

func (cv *Converger) slicesKnown(want *state.Desired, node *observe.Node) *planner.DesiredSlices {
	if node.SlicesErr != nil || node.DriverErr != nil || cv.Policy.NeverRead(node) || !cv.Port.Info().Slices {
		return nil
	}
	w, err := cv.Policy.DesiredSlices(want, node, nil)
	if err != nil {
		return nil
	}
	return w
}

// tellDrift says what of the differences was mended, and keeps what was not. undone are the steps that the loop has no
// authority for.
func (cv *Converger) tellDrift(want *state.Desired, found []difference, undone []step.Step) {
	node := cv.Observer.Last()
	w := cv.slicesKnown(want, node)
	if w == nil {
		return
	}
	cv.Drift.settle(w.Slices, node.Slices, cv.Port.Info())
	left := map[string]api.Condition{}
	for i := range undone {
		if s := &undone[i]; s.Kind == isolation.KindSet || s.Kind == isolation.KindRemove {
			left[s.Text] = api.Condition{Message: "not done by itself: " + s.Text + ", because " + s.Reason, Hint: "it would disturb somebody: 'gpushare apply --force' does it"}
		}
	}
	for _, f := range found {
		if cv.Drift.isSettled(f.name) {
			cv.mendedOne(f.name.Tenant, "", fmt.Sprintf("the slice of %s: %s", f.name, f.text))
		} else if len(undone) == 0 {
			left[f.name.String()] = api.Condition{Tenant: f.name.Tenant, Message: fmt.Sprintf("the slice of %s was changed from outside (wanted → found: %s) and could not be set again", f.name, f.text), Hint: "see the journal of gpushared"}
		}
	}
	cv.Drift.setLeft(left)
}

// mendedOne tells of one thing that was changed from outside and put right.
func (cv *Converger) mendedOne(tenant, lease, text string) {
	cv.Counters.Drifts.Add(1)
	cv.Drift.noteMended(cv.Now(), text)
	cv.Events.Publish(api.Event{Kind: "drift.mended", Tenant: tenant, Lease: lease, Message: "changed from outside and set again (wanted → found): " + text})
	cv.Log.Warn("drift was mended", "what", text)
}

// guardDrift looks which guards somebody else changed, as driftOf does for slices, and gives what tells of those that were
// mended, to be called after the mending.
func (cv *Converger) guardDrift(want *state.Desired, node *observe.Node) (tell func()) {
	none := func() {}
	if node.LoginFiltersErr != nil || node.DriverErr != nil {
		return none
	}
	states, _, err := cv.Policy.DesiredFilters(want, node, nil, cv.Table.Live())
	if err != nil {
		return none
	}
	found := cv.Drift.findGuards(states, node.LoginFilters)
	return func() {
		after := cv.Observer.Last()
		cv.Drift.settleGuards(states, after.LoginFilters)
		for cg, text := range found {
			if cv.Drift.guardSettled(cg) {
				cv.mendedOne("", "", "the guard of "+cg+": "+text)
			}
		}
	}
}

func (x *drift) findGuards(want, is []devices.State) map[string]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[string]string{}
	for _, w := range want {
		if was, ok := x.guards[w.Cgroup]; !ok || !was.Equal(w.Guard) {
			continue
		}
		i := slices.IndexFunc(is, func(s devices.State) bool { return s.Cgroup == w.Cgroup })
		switch {
		case i < 0:
			out[w.Cgroup] = "it was taken away"
		case !is[i].Guard.Equal(w.Guard):
			out[w.Cgroup] = "it closed other devices, or had other exceptions"
		}
	}
	return out
}

func (x *drift) settleGuards(want, is []devices.State) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.guards = map[string]devices.Guard{}
	for _, w := range want {
		if slices.ContainsFunc(is, func(s devices.State) bool { return s.Cgroup == w.Cgroup && s.Guard.Equal(w.Guard) }) {
			x.guards[w.Cgroup] = w.Guard
		}
	}
}

func (x *drift) guardSettled(cg string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.guards[cg]
	return ok
}

// mendScopes sees to it that leases' scopes are closed as they were when they started. One that an earlier life started is
// taken as it is found, unless it is open.
func (cv *Converger) mendScopes(ctx context.Context, node *observe.Node) {
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
		if err := cv.mendScope(ctx, port, node, &l); err != nil && ctx.Err() == nil {
			cv.Log.Warn("cannot verify the device rules of a lease", "lease", l.ID, "error", err)
		}
	}
	cv.Policy.Scopes.Keep(live)
}

func (cv *Converger) mendScope(ctx context.Context, port cgroup.ScopeDevices, node *observe.Node, l *lease.Lease) error {
	closed, is, err := port.ScopeDeviceRules(ctx, l.ID)
	if err != nil {
		return err
	}
	want, known := cv.Policy.Scopes.Get(l.ID)
	if cv.State.Stale(l) {
		if want, _, err = cv.Policy.DeviceRules(node, l); err != nil {
			return err
		}
		known = true
		cv.Policy.Scopes.Set(l.ID, want)
	}
	if !known && closed {
		cv.Policy.Scopes.Set(l.ID, is)
		return nil
	}
	if !known {
		if want, _, err = cv.Policy.DeviceRules(node, l); err != nil {
			return err
		}
		cv.Policy.Scopes.Set(l.ID, want)
	}
	name := cgroup.SliceName{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}
	info := cv.Port.Info()
	expected := info.Expect(cgroup.Slice{Name: name, Closed: true, Devices: want})
	found := cgroup.SliceState{Name: name, Closed: closed, Devices: is}
	if found.Matches(expected) {
		return nil
	}
	if err := port.SetScopeDeviceRules(ctx, l.ID, want); err != nil {
		return err
	}
	cv.Counters.SliceWrites.Add(1)
	cv.mendedOne(l.Terms.Tenant, l.ID, fmt.Sprintf("the devices of lease %s: %s", l.ID, isolation.Difference(expected, found, info)))
	return nil
}

// scopesEvery is the least time between two looks at the scopes: leases come and go in crowds, each of which asks for a look
// at the node, and the service manager has better things to do.
const scopesEvery = time.Second

func (x *drift) scopesDue(now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.Sub(x.looked) < scopesEvery {
		return false
	}
	x.looked = now
	return true
}

// scopesNow makes the next look due, whenever the last was: somebody asks for it by name.
func (x *drift) ScopesNow() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.looked = time.Time{}
}

// LastDrift is what was put right last, and when; the zero time when nothing was.
func (cv *Converger) LastDrift() (at time.Time, text string) {
	all := cv.Drift.history()
	if len(all) == 0 {
		return at, ""
	}
	last := all[len(all)-1]
	return last.at, last.text
}

// judgeSlices shows slices of others among ours.
func (cv *Converger) judgeSlices(want *state.Desired, node *observe.Node, foreign map[string]api.Condition) {
	if !want.Enforcing() || node.SlicesErr != nil {
		return
	}
	w := cv.slicesKnown(want, node)
	if w == nil {
		return
	}
	_, others := cv.State.OwnSlices(node, w.Slices)
	for i := range others {
		foreign[others[i].Path] = api.Condition{
			Message: fmt.Sprintf("the slice of %s (%s) was not made by gpushare", others[i].Name, others[i].Path),
			Hint:    "it is left alone: what runs in it has the limits that whoever made it gave it",
		}
	}
}
