package instances

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// PostImport imports foreign instances: tenants get leases on them, and they are kept and removed like created ones.
func (in *Instances) PostImport(c *server.Call) error { return in.post(c, state.KindImport) }

// PostRemove removes idle instances that are in no layout.
func (in *Instances) PostRemove(c *server.Call) error { return in.post(c, state.KindRemove) }

func (in *Instances) post(c *server.Call, kind string) error {
	q, err := server.Decode[api.InstancesRequest](c)
	if err != nil {
		return err
	}
	if len(q.Start) == 0 {
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "the request names no instance",
			Hint:    "name the memory slice at which each begins: 'gpushare mig list' shows them",
		}
	}
	if c.Flag("check") {
		return in.answer(c, kind, q)
	}
	return in.Changes.Exclusive(c.Ctx(), func() error { return in.answer(c, kind, q) })
}

// answer plans the request and, unless it is a check, begins it.
func (in *Instances) answer(c *server.Call, kind string, q *api.InstancesRequest) error {
	check := c.Flag("check")
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout)
	defer cancel()
	s, err := in.propose(ctx, kind, q)
	if err != nil {
		return err
	}
	out := &api.ApplyResult{Generation: s.plan.Generation, Plan: s.plan, Checked: check, Changed: len(s.steps) > 0 || len(s.imports) > 0}
	if check || !out.Changed {
		return c.Reply(http.StatusOK, out)
	}
	c.Note.GPU, c.Note.Text = string(s.gpu.Identity.UUID), s.auditText()
	if out.Operation, err = in.accept(c.Ctx(), s, c.Caller.Name); err != nil {
		return err
	}
	if out.Operation != nil {
		return c.Reply(http.StatusAccepted, out)
	}
	return c.Reply(http.StatusOK, out)
}

// request is the import or the removal of instances of one GPU.
type request struct {
	kind    string
	node    *observe.Node
	gpu     *observe.GPU
	imports []gpu.Instance // imported without a step
	steps   []step.Step
	plan    api.Plan
}

// propose plans the request, or returns the reason why it is not possible. It changes nothing.
func (in *Instances) propose(ctx context.Context, kind string, q *api.InstancesRequest) (*request, error) {
	node, want := in.Observer.Observe(ctx), in.State.Desired()
	if node.DriverErr != nil {
		return nil, report.DriverError(node.DriverErr)
	}
	g, err := planner.GPUNamed(node, q.GPU)
	if err != nil {
		return nil, err
	}
	s := &request{kind: kind, node: node, gpu: g}
	id := s.gpu.Identity.UUID
	name := s.gpu.Identity.Name()
	if err := refuse(s.gpu, want); err != nil {
		return nil, err
	}
	st := in.State.Stored()
	a, _ := state.Owned(st, id, node)
	switch was, achieved := st.Achieved[id]; {
	case kind != state.KindImport:
	case !achieved:
		return nil, &api.Error{
			Kind:    api.KindConflict,
			Message: "cannot import MIG instances of " + name + ": it never was as the spec says",
			Hint:    planner.RetryHint(s.gpu, "changes it to what the spec says"),
		}
	case state.EpochEnded(was.Epoch, node):
		return nil, &api.Error{
			Kind:    api.KindConflict,
			Message: "cannot import MIG instances of " + name + ": since the host was booted or the driver was loaded it was not as the spec says",
			Hint:    planner.RetryHint(s.gpu, "changes it to what the spec says"),
		}
	}
	use := in.Attribution.UsageUnder(want, in.Attribution.OpenDevices(ctx, node.GPUs))
	present := planner.Present(want.GPUs[id], s.gpu, use)
	var hardware []step.Step
	switch {
	case kind == state.KindImport && want.Mode(id) != api.ModeMIG && slices.ContainsFunc(present, func(b mig.Present) bool {
		return b.Foreign && slices.Contains(q.Start, b.Placement.Start)
	}):
		return nil, &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot import MIG instances of %s: its mode in the spec is %s", name, want.Mode(id)),
			Hint:    withoutMIGHint(s.gpu, present),
		}
	case kind == state.KindImport:
		hardware, err = s.planImport(&a, present, q.Start)
	default:
		hardware, err = planner.PlanRemove(
			want.GPUs[id],
			s.gpu,
			&a,
			present,
			q.Start,
			closing.Held.Closes(st, id),
			planner.Authority{Force: q.Force},
		)
	}
	if err != nil {
		return nil, err
	}
	if len(hardware) > 0 {
		if s.steps, err = in.withNodeSteps(ctx, want, node, use, hardware); err != nil {
			return nil, err
		}
	}
	s.plan = api.Plan{SchemaVersion: 1, Generation: want.Generation, Empty: len(s.steps) == 0, Steps: state.WireSteps(s.steps)}
	in.State.Estimate(node, &s.plan)
	s.plan.Warnings = planner.IrreversibleWarnings(s.steps, node)
	if closing.Held.Closes(st, id) {
		s.plan.Warnings = append(
			s.plan.Warnings,
			name+" stays held: "+planner.RetryHint(s.gpu, "changes it to what the spec says, and removes idle instances in the way"),
		)
	}
	return s, nil
}

// refuse says why the instances of a GPU cannot be changed on request, whatever the request is.
func refuse(g *observe.GPU, want *state.Desired) error {
	id, name := g.Identity.UUID, g.Identity.Name()
	switch {
	case g.Err != nil:
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: name + " does not answer: " + g.Err.Error(),
			Hint:    planner.RetryHint(g, "tries it again"),
		}
	case !want.Enforcing():
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "cannot change MIG instances: the node has no spec with enforce: on",
			Hint:    "apply a spec with enforce: on first",
		}
	case !want.Manages(id):
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot change the MIG instances of %s: its mode in the spec is %s", name, want.Mode(id)),
			Hint:    "apply a spec with mode: mig for it first",
		}
	case g.MIG.Missing.CanRead() != nil:
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: "cannot read the MIG instances of " + name + ": " + g.MIG.Missing.CanRead().Error(),
			Hint:    "install a driver whose library has these functions; 'gpushare doctor' lists what this one lacks",
		}
	case g.Profiles == nil:
		return &api.Error{Kind: api.KindUnavailable, Message: "the driver does not report the MIG profiles of " + name}
	}
	return nil
}

// withoutMIGHint is what to do about the foreign instances of a GPU that the spec has without MIG mode.
func withoutMIGHint(g *observe.GPU, present []mig.Present) string {
	var words []string
	for i := range present {
		if b := &present[i]; b.Foreign && !b.InUse {
			words = append(words, fmt.Sprint(b.Placement.Start))
		}
	}
	if len(words) == 0 {
		return planner.RetryHint(g, "changes it to what the spec says")
	}
	return fmt.Sprintf("'gpushare mig remove %d %s' removes what gpushare does not manage", g.Identity.Index, strings.Join(words, " "))
}

// planImport plans the import of instances. One without compute instances is completed, which is a step. Managed ones stay
// unchanged.
func (s *request) planImport(a *store.Achieved, present []mig.Present, starts []uint32) ([]step.Step, error) {
	var steps []step.Step
	for _, start := range starts {
		b, err := planner.InstanceAt(s.gpu, present, start)
		if err != nil {
			return nil, err
		}
		if state.IsManaged(a, &b.Instance) {
			continue
		}
		if len(b.Compute) > 0 {
			s.imports = append(s.imports, b.Instance)
			continue
		}
		for i := range present { // The planner must change nothing else.
			present[i].Keepable = true
		}
		r, err := mig.Plan(
			*s.gpu.Profiles, present, []mig.Request{{Name: s.gpu.Profiles.GIName(b.ProfileID), At: &b.Placement}},
			mig.Options{TakeForeign: true},
		)
		if err == nil {
			err = r.Check(s.gpu.MIG, mig.Options{})
		}
		if err != nil {
			return nil, &api.Error{
				Kind:    api.KindInfeasible,
				Message: "cannot import " + planner.InstanceName(s.gpu, b) + ": " + err.Error(),
				Hint:    "nothing was changed",
			}
		}
		r.Imported = true
		steps = append(steps, r.Steps(s.gpu.Identity.UUID)...)
	}
	return steps, nil
}

// accept records the imported instances, and starts the steps.
func (in *Instances) accept(ctx context.Context, s *request, caller string) (*api.Operation, error) {
	ctx, err := server.GoOn(ctx)
	if err != nil {
		return nil, err
	}
	want, id := in.State.Desired(), s.gpu.Identity.UUID
	record := &engine.Record{
		Kind:       s.kind,
		By:         caller,
		Generation: want.Generation,
		Started:    in.Now(),
		Epoch:      state.Epoch(s.node),
		Steps:      s.steps,
	}
	imports := func(st *store.State) {
		if len(s.imports) == 0 {
			return
		}
		a := st.Achieved[id] // Only a GPU that has a record gets here with imports.
		for _, in := range s.imports {
			state.AddImported(st, &a, in)
		}
		st.Achieved[id] = a
	}
	var op *api.Operation
	if len(s.steps) > 0 {
		op, err = in.Changes.Begin(record, s.plan, nil, imports)
	} else {
		err = in.State.Store.Update(func(st *store.State) error { imports(st); return nil })
	}
	if err != nil {
		return nil, state.NotBegun("the change was not begun", "try", in.State.Store.Path(), err)
	}
	if op == nil {
		in.Refresh(ctx, s.node)
		in.Wake() // Imported instances may be granted now.
	}
	return op, nil
}

// auditText names the instances.
func (s *request) auditText() string {
	var names []string
	for i := range s.imports {
		names = append(names, planner.InstanceName(s.gpu, &mig.Present{Instance: s.imports[i]}))
	}
	for i := range s.steps {
		if s.steps[i].GPU != "" {
			names = append(names, s.steps[i].Text)
		}
	}
	return fmt.Sprintf("%s: %s", s.gpu.Identity.Name(), strings.Join(names, ", "))
}
