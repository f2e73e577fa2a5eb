package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// kindRelease is the kind of change that gives the node back.
const kindRelease = "release"

// noSpec is what is kept in the place of a spec once all was given back.
const noSpec = "version: v1\n"

// postRelease gives the node back: everything that holds anybody, and with all also what GPUs were made into. It is a
// change like every other: planned, shown, recorded, carried out by steps, and gone on with after a crash.
func (d *Changes) postRelease(c *call) error {
	q := c.r.URL.Query()
	a := authority{Force: q.Get("force") != ""}
	check, what := q.Get("check") != "", store.ReleasedWalls
	if q.Get("all") != "" {
		what = store.ReleasedAll
	}
	if check {
		p, err := d.proposeRelease(c.ctx(), what, c.caller.name)
		if err != nil {
			return err
		}
		return c.reply(http.StatusOK, api.ApplyResult{Generation: p.want.generation, Plan: p.plan, Checked: true, Changed: !p.same || !p.plan.Empty})
	}
	done, err := d.takeTurn(c.ctx())
	if err != nil {
		return err
	}
	defer done()
	// First nobody is let in any more, and then those inside are counted.
	open := d.closeDoors()
	out, err := d.release(c, what, a)
	if err != nil || out.Operation == nil {
		open()
	}
	if err != nil {
		return err
	}
	if out.Operation != nil {
		return c.reply(http.StatusAccepted, out)
	}
	return c.reply(http.StatusOK, out)
}

func (d *Changes) release(c *call, what string, a authority) (*api.ApplyResult, error) {
	who := c.caller.name
	p, err := d.proposeRelease(c.ctx(), what, who)
	if err != nil {
		return nil, err
	}
	if err := admitRelease(p.steps, a); err != nil {
		return nil, err
	}
	out := &api.ApplyResult{Generation: p.want.generation, Plan: p.plan, Changed: !p.same || !p.plan.Empty}
	if !out.Changed {
		return out, nil
	}
	out.Operation, err = d.accept(c.ctx(), p, who, a)
	return out, err
}

// admitRelease refuses to stop anybody without authority, and names them all.
func admitRelease(steps []step.Step, a authority) error {
	var who []string
	for i := range steps {
		if steps[i].Disruption != step.Running {
			continue
		}
		for _, w := range steps[i].Disturbs {
			if !slices.ContainsFunc(who, func(o string) bool { return o == w || strings.HasPrefix(o, w+" ") }) {
				who = append(who, w)
			}
		}
	}
	if len(who) == 0 || a.Force {
		return nil
	}
	return &api.Error{
		Kind: api.KindInUse, Message: "the node is in use by " + strings.Join(who, ", "),
		Hint: "nothing was changed; --force stops them, the polite way, or wait until they end",
	}
}

// closeDoors keeps new leases out of every GPU until open is called or a change takes its place.
func (d *Changes) closeDoors() (open func()) {
	node := d.observer.Last()
	gate := &openChange{operation: kindRelease, gpus: everyGPU(node)}
	d.state.SetChanging(gate)
	d.table.Update(view(d.state, node))
	return func() {
		if d.state.Withdraw(gate) {
			d.table.Update(view(d.state, d.observer.Last()))
			d.touch()
		}
	}
}

func everyGPU(n *observe.Node) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	for i := range n.GPUs {
		out[n.GPUs[i].Identity.UUID] = true
	}
	return out
}

// proposeRelease plans giving the node back. It changes nothing.
func (d *Changes) proposeRelease(ctx context.Context, what, who string) (*proposal, error) {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	now, acc := d.state.Desired(), d.state.Kept().Accepted
	p := &proposal{node: d.observer.Observe(ctx), want: now, released: what}
	p.same = acc == nil || acc.Released == what || acc.Released == store.ReleasedAll
	if !p.same {
		var err error
		if p.yaml, p.want, err = releasedSpec(acc, what); err != nil {
			return nil, err
		}
		if what != store.ReleasedAll {
			p.resolved = spec.Resolved(acc.Resolved)
		}
		p.want.generation = acc.Generation + 1
		p.want.released = &api.Released{Who: who, At: d.Now(), All: what == store.ReleasedAll}
	}
	left, err := d.standing(p.node, what)
	if err != nil {
		return nil, err
	}
	quiet, err := d.planQuiesce(ctx, now, d.attribution.usageUnder(now, d.attribution.devicesOpen(ctx, p.node.GPUs)), left.steps)
	if err != nil {
		return nil, err
	}
	left.warnings = append(left.warnings, quiet.warnings...)
	p.steps = number(slices.Concat(quiet.stop, left.steps, quiet.start))
	p.plan = api.Plan{SchemaVersion: 1, Generation: p.want.generation, Empty: len(p.steps) == 0, Steps: wireSteps(p.steps), Warnings: left.warnings}
	d.state.estimate(p.node, &p.plan)
	p.plan.Disturbs = disturbs(p.steps)
	return p, nil
}

// releasedSpec is the spec of a node that was given back: the one that was in force, observed; or none.
func releasedSpec(acc *store.Accepted, what string) (yaml string, want *desired, err error) {
	if what == store.ReleasedAll {
		return noSpec, &desired{}, nil
	}
	s, err := spec.Decode("state.json", []byte(acc.YAML))
	if err != nil {
		return "", nil, &api.Error{Kind: api.KindInvalid, Message: "the accepted spec cannot be read by this version: " + err.Error(), Hint: "'gpushare release --all' gives the node back without keeping it"}
	}
	s.Node.Enforce = "observe"
	text, err := spec.Encode(s)
	if err != nil {
		return "", nil, err
	}
	s.Normalize()
	return string(text), wantOf(s, spec.Resolved(acc.Resolved), acc.Generation), nil
}

// left is what of ours is on the node, as the steps that take it back.
type left struct {
	steps    []step.Step
	warnings []string // what stays, and why
}

// standing is what of ours stands on the node. It needs no spec: what is there is found by looking.
func (d *Changes) standing(node *observe.Node, what string) (left, error) {
	var out left
	if node.SlicesErr != nil {
		return out, fmt.Errorf("cannot read the slices: %w", node.SlicesErr)
	}
	live := d.table.Live()
	var hardware []step.Step
	if what == store.ReleasedAll {
		found, uses := d.state.Kept().Found, d.attribution.usage()
		for i := range node.GPUs {
			steps, warnings := planGiveBack(&node.GPUs[i], found[node.GPUs[i].Identity.UUID], uses)
			hardware = append(hardware, steps...)
			out.warnings = append(out.warnings, warnings...)
		}
	}
	own, others := d.state.ownSlices(node, nil)
	for i := range others {
		out.warnings = append(out.warnings, fmt.Sprintf("the slice of %s was not made by gpushare: it stays", others[i].Name))
	}
	stop, _ := planMPS(&desired{}, node)
	var names []cgroup.SliceState
	if !d.port.Info().Slices {
		if !d.state.Desired().enforcing() {
			own = nil // Who is only observed is held by nothing.
		}
		names = own
	}
	walls := slices.Concat(isolation.PlanRelease(own, d.port.Info(), d.attribution.sliceUse(node)), isolation.PlanGuards(nil, node.Guards, d.logins.logins), planMigration(&desired{}, d.policy.nodeInput(&desired{}, node, nil).Denied))
	rest, err := d.planGiveBackRest()
	if err != nil {
		return out, err
	}
	out.steps = slices.Concat(planReleaseStops(live, names, hardware, what), walls, rest, stop, hardware)
	return out, nil
}

// planReleaseStops ends the leases that are held by walls of ours, and those whose GPU or instance is taken back. Who
// stays where he is goes on, and when no spec stays in force is in no lease any more. Names are the slices that go
// where there are no cgroups: leases are followed under them, and they are not given up before those have ended.
func planReleaseStops(live []lease.Lease, names []cgroup.SliceState, hardware []step.Step, what string) []step.Step {
	const reason = "the node is given back"
	var out []step.Step
	for i := range live {
		l := &live[i]
		inWalls := !l.Visiting() || l.Held == lease.HeldContainer
		switch {
		// One that was placed just now has no walls yet, and will have.
		case inWalls && (l.Walls.Cgroup != "" || l.State != lease.Running), !l.Visiting() && isUnder(l, names), losesItsPlace(l, hardware):
			out = append(out, stopStep(l, reason))
		case what == store.ReleasedAll && l.Visiting():
			out = append(out, step.Step{
				Kind: KindLeaseRelease, Phase: step.Narrow, Args: step.Must(leaseStopArgs{l.ID}),
				Text: "let go of lease " + l.ID + ": its processes go on", Reason: reason, Disruption: step.None,
			})
		}
	}
	return out
}

func isUnder(l *lease.Lease, names []cgroup.SliceState) bool {
	return slices.ContainsFunc(names, func(s cgroup.SliceState) bool {
		return s.Name == cgroup.SliceName{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}
	})
}

func losesItsPlace(l *lease.Lease, hardware []step.Step) bool {
	for _, id := range l.Place.GPUs {
		if l.Place.Instance != nil && destroys(hardware, id, *l.Place.Instance) {
			return true
		}
		if slices.ContainsFunc(hardware, func(s step.Step) bool { return s.GPU == string(id) && s.Kind == mig.KindMode }) {
			return true
		}
	}
	return false
}

// planGiveBack makes a GPU be as it was found: instances of ours go, and modes become what they were. What cannot be
// taken back without more authority stays, and is told. It is pure.
func planGiveBack(g *observe.GPU, was store.Found, use usage) (steps []step.Step, warnings []string) {
	name := fmt.Sprintf("GPU %d", g.Identity.Index)
	if g.Err != nil {
		return nil, []string{name + " does not answer, so it stays as it is: " + g.Err.Error()}
	}
	switch on := was.MIG == nil || *was.MIG; {
	case !g.MIG.Current && !g.MIG.Pending:
	case g.Profiles == nil:
		warnings = append(warnings, name+": its instances and its MIG mode stay: the driver does not tell its profiles")
	default:
		r, err := giveBackMIG(g, on, use)
		if err != nil && !on {
			warnings = append(warnings, fmt.Sprintf("%s: MIG mode stays on: %v", name, err))
			r, err = giveBackMIG(g, true, use)
		}
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("%s: its instances stay: %v", name, err))
		} else {
			steps = r.Steps(g.Identity.UUID)
		}
	}
	if was.ComputeMode != "" && g.ComputeMode != gpu.ComputeModeUnknown && g.ComputeMode != was.ComputeMode && g.MPS == nil {
		steps = append(steps, computeModeStep(g, was.ComputeMode, "it was so before"))
	}
	for i := range steps {
		steps[i].Reason = "the node is given back"
	}
	return steps, warnings
}

// giveBackMIG plans the MIG part. Whoever is in the way is named by the steps, and admitted or not with all others; what
// others made is never in the way, because nothing is wanted in its place.
func giveBackMIG(g *observe.GPU, on bool, use usage) (mig.Result, error) {
	plain := &api.GPUSpec{Mode: api.ModeMIG} // No dynamic layout: nothing is kept in hand.
	device := mig.Device{MIG: g.MIG, Present: present(plain, g, use), Profiles: *g.Profiles}
	device.Holders, device.Stay = holders(g, nil, use)
	return mig.PlanDevice(device, mig.Target{On: on}, mig.Options{Force: true})
}

// noteFound remembers, of the GPUs whose modes these steps change, what they were: once, before the first change of ours.
func noteFound(s *store.State, steps []step.Step) {
	for i := range steps {
		st := &steps[i]
		f := s.Found[gpu.UUID(st.GPU)]
		switch st.Kind {
		case mig.KindMode:
			var was mig.ModeArgs
			if json.Unmarshal(st.Undo, &was) != nil || f.MIG != nil {
				continue
			}
			f.MIG = &was.On
		case KindComputeMode:
			var was computeModeArgs
			if json.Unmarshal(st.Undo, &was) != nil || f.ComputeMode != "" {
				continue
			}
			f.ComputeMode = was.Mode
		default:
			continue
		}
		if s.Found == nil {
			s.Found = map[gpu.UUID]store.Found{}
		}
		s.Found[gpu.UUID(st.GPU)] = f
	}
}

// noteReleased records what a release reached. What could not be given back is still ours, so that the next one finds it.
func noteReleased(s *store.State, want *desired, node *observe.Node, failed map[gpu.UUID]string, empty bool) {
	if want.released != nil && want.released.All {
		for i := range node.GPUs {
			id := node.GPUs[i].Identity.UUID
			if _, bad := failed[id]; bad || node.GPUs[i].Err != nil {
				continue
			}
			delete(s.Achieved, id)
			delete(s.Found, id)
			delete(s.Held, id)
		}
	}
	if empty {
		s.Standing = false
	}
}

// stillStands tells how many steps are left to give the node back, and the first of them.
func (d *Changes) stillStands(node *observe.Node) (n int, first string, err error) {
	l, err := d.standing(node, store.ReleasedWalls)
	if err != nil || len(l.steps) == 0 {
		return 0, "", err
	}
	return len(l.steps), l.steps[0].Text, nil
}

// nothingStands looks whether the node was given back whole.
func (d *Changes) nothingStands(node *observe.Node, want *desired) bool {
	what := store.ReleasedWalls
	if want.released != nil && want.released.All {
		what = store.ReleasedAll
	}
	l, err := d.standing(node, what)
	return err == nil && len(l.steps) == 0
}

// judgeRelease reports what still stands on a node that was given back.
func (d *Converger) judgeRelease(want *desired, node *observe.Node) {
	still := map[string]api.Condition{}
	if want.released != nil && d.state.Kept().Standing && d.state.Changing() == nil {
		n, first, err := d.changes.stillStands(node)
		switch {
		case err != nil:
			still[""] = api.Condition{Message: "whether all was given back cannot be seen: " + err.Error()}
		case n > 0:
			still[""] = api.Condition{
				Message: fmt.Sprintf("not all was given back: %s (%d steps are left)", first, n),
				Hint:    "'gpushare release --check' lists it; correct the cause and release again",
			}
		}
	}
	d.Conditions.replace(kindRelease, still)
}
