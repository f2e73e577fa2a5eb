package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// proposal is a spec on its way to be accepted.
type proposal struct {
	yaml     string // as it is kept
	want     *desired
	resolved spec.Resolved
	node     *observe.Node
	steps    []step.Step
	plan     api.Plan
	same     bool      // the spec in force says the same
	only     *gpu.UUID // a retry: nothing is said of other GPUs
	released string    // a release: how much is given back
}

func (p *proposal) about(id gpu.UUID) bool { return p.only == nil || *p.only == id }

func (p *proposal) kind() string {
	switch {
	case p.released != "":
		return kindRelease
	case p.only != nil:
		return "retry"
	}
	return "apply"
}

// putSpec is apply: decode, resolve, observe, plan, admit, persist, and then the steps.
func (d *Changes) putSpec(c *call) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	q := c.r.URL.Query()
	a := authority{Force: q.Get("force") != "", AllowReset: q.Get("allow-reset") != ""}
	check := q.Get("check") != ""
	file := q.Get("file")
	if file == "" || file == "-" {
		file = "the spec"
	}
	match, err := ifMatch(c.r.Header.Get("If-Match"))
	if err != nil {
		return err
	}
	s, err := spec.Decode(file, body)
	if err != nil {
		return err
	}
	if !check {
		done, err := d.takeTurn(c.ctx())
		if err != nil {
			return err
		}
		defer done()
	}
	p, err := d.propose(c.ctx(), file, body, s, match, a)
	if err != nil {
		return err
	}
	if q.Get("diff") != "" {
		p.plan.Diff = d.specDiff(p)
	}
	out := api.ApplyResult{Generation: p.want.generation, Plan: p.plan, Checked: check, Changed: !p.same || !p.plan.Empty}
	if check || (p.same && p.plan.Empty) {
		return c.reply(http.StatusOK, out)
	}
	op, err := d.accept(c.ctx(), p, c.caller.name, a)
	if err != nil {
		return err
	}
	out.Operation = op
	status := http.StatusOK
	if op != nil {
		status = http.StatusAccepted
	}
	return c.reply(status, out)
}

// located gives the findings of an error their places in the document.
func located(file string, body []byte, err error) error {
	var e *api.Error
	if errors.As(err, &e) && len(e.Fields) > 0 {
		e.Fields = spec.Locate(file, body, e.Fields)
		e.Message = e.Fields[0].Error()
	}
	return err
}

func ifMatch(header string) (*uint64, error) {
	if header == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(strings.Trim(header, `"`), 10, 64)
	if err != nil {
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot read If-Match: it must be a generation"}
	}
	return &n, nil
}

func (d *Changes) conflict() error {
	e := &api.Error{Kind: api.KindConflict, Message: "another change is under way", Hint: "wait for it and try again"}
	if ch := d.state.Changing(); ch != nil {
		e.Operation = ch.operation
		e.Message += ": " + ch.operation
	}
	return e
}

// propose makes a plan of a spec, or says exactly why there is none. It changes nothing.
func (d *Changes) propose(ctx context.Context, file string, body []byte, s *api.Spec, match *uint64, a authority) (*proposal, error) {
	now := d.state.Desired()
	if s.Base != nil && match == nil {
		match = s.Base
	}
	if match != nil && *match != now.generation {
		return nil, &api.Error{
			Kind:    api.KindConflict,
			Message: fmt.Sprintf("generation %d is in force, not %d: somebody else applied a spec in between", now.generation, *match),
			Hint:    "see what changed with 'gpushare get', merge, and apply again",
		}
	}
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	d.identities.learn(s, nameGrace, true)
	node := d.observer.Observe(ctx)
	if node.DriverErr != nil && len(s.GPUs) > 0 {
		return nil, driverError(node.DriverErr)
	}
	s.Base = nil
	text, err := spec.Encode(s)
	if err != nil {
		return nil, err
	}
	s.Normalize() // What is kept is what was written; defaults may change with a version.
	resolved, found, err := spec.Resolve(s, node.Identities())
	if err != nil {
		return nil, located(file, body, err)
	}
	p := &proposal{node: node, resolved: resolved, want: wantOf(s, resolved, now.generation+1), yaml: string(text)}
	p.same = now.spec != nil && d.state.Kept().Accepted != nil && d.state.Kept().Accepted.YAML == p.yaml && sameResolved(now, p.want)
	if p.same {
		p.want.generation = now.generation
	}
	if err := feasibleSpec(p.want, node); err != nil {
		return nil, located(file, body, err)
	}
	return p, d.planProposal(ctx, p, found, a)
}

// planProposal adds the steps and proves that they can be done.
func (d *Changes) planProposal(ctx context.Context, p *proposal, found []api.FieldError, a authority) error {
	use := d.attribution.usageUnder(p.want, d.attribution.devicesOpen(ctx, p.node.GPUs))
	hardware := planGPUs(p.want, p.node, use, a)
	maps.DeleteFunc(hardware.problems, func(id gpu.UUID, _ error) bool { return !p.about(id) })
	hardware.steps = slices.DeleteFunc(hardware.steps, func(s step.Step) bool { return !p.about(gpu.UUID(s.GPU)) })
	if err := problemError(hardware.problems); err != nil {
		if what := d.resetRefused(ctx, hardware.problems, p.node); what != "" {
			err.Hint += "; " + what
		}
		err.Holders = holdersOf(hardware.problems, p.node, use)
		return err
	}
	soft, err := planNode(p.want, p.node, d.policy.nodeInput(p.want, p.node, hardware.steps))
	if err != nil {
		return err
	}
	stops := planStops(p.want, d.table.Live(), hardware.steps)
	steps := slices.Concat(stops, soft.narrow, planProcessStops(hardware.steps, p.node, use), hardware.steps, soft.rest)
	if p.only != nil {
		// The walls come with it: nobody may open what goes, or its place is another's before it is taken from him.
		steps = slices.DeleteFunc(steps, func(s step.Step) bool { return s.GPU != "" && s.GPU != string(*p.only) })
	}
	quiet, err := d.planQuiesce(ctx, p.want, use, steps)
	if err != nil {
		return err
	}
	// Leases are given their grace before anything else stands still.
	steps = slices.Insert(steps, leading(steps, KindLeaseStop), quiet.stop...)
	p.steps = number(append(steps, quiet.start...))
	if err := admit(p.steps, a); err != nil {
		return err
	}
	p.plan = api.Plan{
		SchemaVersion: 1, Generation: p.want.generation, Empty: len(p.steps) == 0, Steps: wireSteps(p.steps), Observe: !p.want.enforcing(),
	}
	d.state.estimate(p.node, &p.plan)
	for _, w := range found {
		p.plan.Warnings = append(p.plan.Warnings, w.Error())
	}
	p.plan.Warnings = slices.Concat(p.plan.Warnings, d.tellResets(ctx, p.steps, p.node, use), quiet.warnings, unheeded(p.want.spec))
	unknown := rosterOf(0, p.want.spec, d.identities.rosters.names).unknown
	for i := range unknown {
		p.plan.Warnings = append(p.plan.Warnings, unknown[i].text())
	}
	p.plan.Disturbs = disturbs(p.steps)
	return nil
}

// leading is how many of the first steps are of a kind.
func leading(steps []step.Step, kind string) int {
	n := slices.IndexFunc(steps, func(s step.Step) bool { return s.Kind != kind })
	if n < 0 {
		return len(steps)
	}
	return n
}

// disturbs is whom steps disturb, each once: a lease that is stopped is named with its user, and by itself where what it has
// is taken away.
func disturbs(steps []step.Step) []string {
	var out []string
	for i := range steps {
		for _, who := range steps[i].Disturbs {
			if !slices.ContainsFunc(out, func(o string) bool { return o == who || strings.HasPrefix(o, who+" of ") }) {
				out = append(out, who)
			}
		}
	}
	return out
}

// admit refuses to disturb anybody without authority. The planners refuse it already; this is the last gate.
func admit(steps []step.Step, a authority) error {
	for i := range steps {
		if s := &steps[i]; s.Disruption == step.Running && !a.Force {
			return &api.Error{
				Kind: api.KindInUse, Message: fmt.Sprintf("this would disturb %s: %s, because %s", strings.Join(s.Disturbs, ", "), s.Text, s.Reason),
				Hint: "nothing was changed; --force stops them, the polite way, or wait until they end",
			}
		}
	}
	return nil
}

// problemError says why GPUs cannot become as wanted: the first in full, and how many more.
func problemError(problems map[gpu.UUID]error) *api.Error {
	if len(problems) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(problems))
	err := problems[ids[0]]
	e := &api.Error{Kind: api.KindInfeasible, Message: err.Error(), Hint: "nothing was changed"}
	var none *mig.NoProfile
	var not *mig.Infeasible
	switch {
	case errors.Is(err, gpu.ErrResetRequired):
		e.Hint = "nothing was changed; --allow-reset lets the driver reset that GPU, which nobody may use then"
	case errors.Is(err, gpu.ErrInUse):
		e.Kind, e.Hint = api.KindInUse, "nothing was changed; --force stops them, the polite way"
	case errors.As(err, &none), errors.As(err, &not):
	case gpu.IsAny(err, gpu.ErrLost, gpu.ErrTimeout, gpu.ErrStuck, gpu.ErrNotLoaded):
		e.Kind, e.Hint = api.KindUnavailable, "nothing was changed; 'gpushare gpu retry' tries the GPU again, 'gpushare doctor' says more"
	}
	if len(ids) > 1 {
		e.Message += fmt.Sprintf(" (and %d more GPUs)", len(ids)-1)
	}
	return e
}

// holdersOf lists who uses the GPUs that cannot become as wanted because they are in use.
func holdersOf(problems map[gpu.UUID]error, node *observe.Node, use usage) []api.Holder {
	var out []api.Holder
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		if g, ok := node.GPU(id); ok && errors.Is(problems[id], gpu.ErrInUse) {
			out = append(out, holdersOn(g, use)...)
		}
	}
	return out
}

// feasibleSpec refuses grants that can never be had: more memory than there is.
func feasibleSpec(want *desired, n *observe.Node) error {
	var wrong []api.FieldError
	for i := range want.spec.Tenants {
		t := &want.spec.Tenants[i]
		for j := range t.GPU {
			g := &t.GPU[j]
			ids := want.grants[grantKey{t.Name, g.Name}]
			need := grantMemory(g)
			if need == 0 || len(ids) == 0 {
				continue
			}
			var most uint64
			over := false
			for _, id := range ids {
				if gp, ok := n.GPU(id); ok {
					most = max(most, gp.Memory.Total-min(gp.Memory.Reserved+want.reserve(id), gp.Memory.Total))
					over = over || want.gpus[id].Overcommit
				}
			}
			if need > most && !over {
				wrong = append(wrong, api.FieldError{
					Path:    fmt.Sprintf("tenants[%d].gpu[%d].%s.memory", i, j, g.Kind()),
					Message: fmt.Sprintf("%s is more than any of its GPUs has: %s, the reserve taken off", api.Bytes(need).Short(), api.Bytes(most).Short()),
					Hint:    "grant less, or name larger GPUs",
				})
			}
		}
	}
	if len(wrong) == 0 {
		return reservedFit(want, n)
	}
	return &api.Error{Kind: api.KindInfeasible, Message: wrong[0].Error(), Fields: wrong, Hint: "nothing was changed"}
}

// reservedFit refuses reserved grants that do not fit beside each other on the one GPU that they all name.
func reservedFit(want *desired, n *observe.Node) error {
	sum := map[gpu.UUID]uint64{}
	for i := range want.spec.Tenants {
		t := &want.spec.Tenants[i]
		for j := range t.GPU {
			if ids := want.grants[grantKey{t.Name, t.GPU[j].Name}]; t.GPU[j].Reserved && len(ids) == 1 {
				sum[ids[0]] += grantMemory(&t.GPU[j])
			}
		}
	}
	for id, need := range sum {
		g, ok := n.GPU(id)
		if !ok || want.gpus[id].Overcommit {
			continue
		}
		if has := g.Memory.Total - min(g.Memory.Reserved+want.reserve(id), g.Memory.Total); need > has {
			return &api.Error{
				Kind:    api.KindInfeasible,
				Message: fmt.Sprintf("the reserved grants on GPU %d want %s together, it has %s, the reserve taken off", g.Identity.Index, api.Bytes(need).Short(), api.Bytes(has).Short()),
				Hint:    "grant less, reserve fewer, or write overcommit: true for that GPU; nothing was changed",
			}
		}
	}
	return nil
}

func grantMemory(g *api.GrantSpec) uint64 {
	for _, s := range []*api.ShareSpec{g.Timeslice, g.MPS} {
		if s != nil && s.Memory != nil {
			return uint64(*s.Memory)
		}
	}
	return 0
}

func wantOf(s *api.Spec, r spec.Resolved, generation uint64) *desired {
	w := &desired{generation: generation, spec: s, gpus: map[gpu.UUID]*api.GPUSpec{}, grants: map[grantKey][]gpu.UUID{}}
	for id, entry := range r.GPUs {
		w.gpus[id] = &s.GPUs[entry]
	}
	for i := range s.Tenants {
		for j := range s.Tenants[i].GPU {
			t, g := s.Tenants[i].Name, s.Tenants[i].GPU[j].Name
			w.grants[grantKey{t, g}] = r.Grants[spec.GrantKey(t, g)]
		}
	}
	return w
}

// sameResolved tells whether the selectors mean the same GPUs as when the spec in force was accepted.
func sameResolved(a, b *desired) bool {
	return maps.EqualFunc(a.grants, b.grants, slices.Equal[[]gpu.UUID]) &&
		maps.EqualFunc(a.gpus, b.gpus, func(x, y *api.GPUSpec) bool { return x.Mode == y.Mode })
}

func (d *Changes) specDiff(p *proposal) *api.Diff {
	out := &api.Diff{After: p.yaml}
	if acc := d.state.Kept().Accepted; acc != nil {
		out.Before = acc.YAML
	}
	return out
}

// adoptSpec takes up the accepted spec at start. What selectors mean was decided when it was accepted.
func (d *Changes) adoptSpec(_ *observe.Node) {
	acc := d.state.Kept().Accepted
	if acc == nil {
		d.identities.learn(nil, nameStart, true)
		return
	}
	released := releasedOf(acc)
	if acc.Released == store.ReleasedAll {
		d.identities.learn(nil, nameStart, true)
		d.install(&desired{generation: acc.Generation, released: released})
		return
	}
	s, err := spec.Decode("state.json", []byte(acc.YAML))
	if err != nil {
		d.Conditions.set("state", "spec", "the accepted spec cannot be read by this version: "+err.Error(), "nothing is changed; apply a spec that this version reads")
		d.Log.Error("cannot read the accepted spec", "error", err)
		d.identities.learn(nil, nameStart, true)
		return
	}
	s.Normalize()
	d.identities.learn(s, nameStart, true)
	want := wantOf(s, spec.Resolved(acc.Resolved), acc.Generation)
	want.released = released
	d.install(want)
}

// releasedOf says when and by whom the node was given back; nil when a spec was applied since.
func releasedOf(acc *store.Accepted) *api.Released {
	if acc.Released == "" {
		return nil
	}
	return &api.Released{Who: acc.Who, At: acc.At, All: acc.Released == store.ReleasedAll}
}

// install puts a spec in force in memory.
func (d *Changes) install(want *desired) {
	d.state.SetDesired(want)
	d.identities.renewRoster()
}

// firstSpec applies the settings' spec file on a node that never had a spec.
func (d *Changes) firstSpec(ctx context.Context) {
	if d.settings.SpecFile == "" || d.state.Kept().Accepted != nil {
		return
	}
	err := d.applyFile(ctx, d.settings.SpecFile)
	if err != nil {
		d.Conditions.set("spec-file", "", "the spec file was not applied: "+err.Error(), "correct it, then 'gpushare apply -f "+d.settings.SpecFile+"'")
		d.Log.Error("cannot apply the spec file", "file", d.settings.SpecFile, "error", err)
	}
}

func (d *Changes) applyFile(ctx context.Context, file string) error {
	body, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cannot read it: %w", err)
	}
	s, err := spec.Decode(file, body)
	if err != nil {
		return err
	}
	d.applyMu.Lock()
	defer d.applyMu.Unlock()
	p, err := d.propose(ctx, file, body, s, nil, authority{})
	if err != nil {
		return err
	}
	_, err = d.accept(ctx, p, "the settings' spec_file", authority{})
	return err
}

// getSpec answers the spec in force, with its generation as base: an edited copy is refused when somebody was faster.
func (d *Changes) getSpec(c *call) error {
	acc := d.state.Kept().Accepted
	if acc != nil && acc.Released == store.ReleasedAll {
		return &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("no spec is in force: %s gave the node back at %s", acc.Who, acc.At.Format(time.RFC3339)), Hint: "'gpushare apply -f node.yaml' starts again"}
	}
	if acc == nil {
		return &api.Error{Kind: api.KindNotFound, Message: "no spec was applied yet", Hint: "write one and 'gpushare apply -f node.yaml'; examples are in /usr/share/gpushare/examples"}
	}
	c.w.Header().Set("ETag", strconv.Quote(strconv.FormatUint(acc.Generation, 10)))
	head, rest, _ := strings.Cut(acc.YAML, "\n")
	return c.reply(http.StatusOK, api.SpecDocument{
		Generation: acc.Generation, Who: acc.Who, At: acc.At, YAML: fmt.Sprintf("%s\nbase: %d\n%s", head, acc.Generation, rest),
	})
}

// getPlan answers how the node differs from the spec in force.
func (d *Viewer) getPlan(c *call) error {
	ctx, cancel := context.WithTimeout(c.ctx(), observe.Timeout)
	defer cancel()
	node, want := d.observer.Observe(ctx), d.state.Desired()
	if node.DriverErr != nil {
		return driverError(node.DriverErr)
	}
	out := api.Plan{SchemaVersion: 1, Generation: want.generation, Observe: want.spec != nil && !want.enforcing(), Steps: []api.PlanStep{}}
	hardware := planGPUs(want, node, d.attribution.usage(), authority{})
	for _, id := range slices.Sorted(maps.Keys(hardware.problems)) {
		out.Warnings = append(out.Warnings, hardware.problems[id].Error())
	}
	soft, err := planNode(want, node, d.policy.nodeInput(want, node, hardware.steps))
	if err != nil {
		return err
	}
	out.Steps = wireSteps(number(append(soft.narrow, append(hardware.steps, soft.rest...)...)))
	out.Empty = len(out.Steps) == 0
	return c.reply(http.StatusOK, out)
}

// number gives steps their ids, in order.
func number(steps []step.Step) []step.Step {
	for i := range steps {
		steps[i].ID = i + 1
	}
	return steps
}

func wireSteps(steps []step.Step) []api.PlanStep {
	out := make([]api.PlanStep, len(steps))
	for i, s := range steps {
		out[i] = api.PlanStep{ID: s.ID, Op: s.Kind, GPU: s.GPU, Text: s.Text, Reason: s.Reason, Disruption: string(s.Disruption), Disturbs: s.Disturbs}
	}
	return out
}

// epoch is the hardware epoch as the store keeps it.
func epoch(n *observe.Node) store.Epoch {
	return store.Epoch{Boot: n.Epoch.Boot, Driver: n.Epoch.Driver}
}

// epochOver tells whether a boot or a load of the driver came since: no instance outlives either.
func epochOver(e store.Epoch, n *observe.Node) bool {
	return e.Boot != n.Epoch.Boot || e.Driver != n.Epoch.Driver
}
