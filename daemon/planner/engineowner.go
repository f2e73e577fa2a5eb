package planner

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
)

// ownerUnder is the engine that places the leases on a GPU; empty: none.
func ownerUnder(d *state.Desired, id gpu.UUID) string {
	if e := d.GPUs[id]; e != nil {
		return e.Engine()
	}
	return ""
}

// EnginesChanged are the engines in whose GPUs the steps change what a job may have, also a job that does not use its GPU now and is not
// seen: its engine alone knows of it. They are sorted. now is the spec in force, under which the jobs were placed; problems has the GPUs
// without steps, those in use among them.
func EnginesChanged(now *state.Desired, live []lease.Lease, steps []step.Step, problems map[gpu.UUID]error) []string {
	found := map[string]bool{}
	for id, err := range problems {
		if errors.Is(err, gpu.ErrInUse) {
			found[ownerUnder(now, id)] = true
		}
	}
	for i := range steps {
		s := &steps[i]
		if s.Disruption == step.None {
			continue
		}
		if s.GPU != "" {
			found[ownerUnder(now, gpu.UUID(s.GPU))] = true
		}
		if l := stopped(s, live); l != nil {
			for _, id := range l.Place.GPUs {
				found[ownerUnder(now, id)] = true
			}
		}
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// stopped is the lease that a step stops; nil: none.
func stopped(s *step.Step, live []lease.Lease) *lease.Lease {
	var args LeaseStopArgs
	if s.Kind != KindLeaseStop || json.Unmarshal(s.Args, &args) != nil {
		return nil
	}
	if i := slices.IndexFunc(live, func(l lease.Lease) bool { return l.ID == args.Lease }); i >= 0 {
		return &live[i]
	}
	return nil
}

// AdmitEngines refuses a change of the GPUs of engines that are not drained: a job has its GPU before it uses it, and gpushare sees only
// use. An administrator who knows of no job says so, and --force permits it as it permits to end a job that is seen.
func AdmitEngines(engines []string, host, command string, a Authority) error {
	left := slices.DeleteFunc(slices.Clone(engines), func(engine string) bool { return slices.Contains(a.Drained, engine) })
	if len(left) == 0 || a.Force {
		return nil
	}
	return &api.Error{
		Kind: api.KindInUse,
		Message: fmt.Sprintf(
			"this changes GPUs that %s places on: a job may have one that it does not use now, which gpushare does not see",
			strings.Join(left, " and "),
		),
		Hint:    "nothing was changed; " + DrainHint(left, host, command),
		Engines: left,
	}
}

// EnginesRefused are the engines whose jobs are in the way of a refused change: those that place the leases which it ends, on the GPUs that
// are in use, or where a step disturbs what uses a GPU. They are sorted.
func EnginesRefused(
	now *state.Desired, live []lease.Lease, ends []api.LeaseEnd, steps []step.Step, problems map[gpu.UUID]error,
) []string {
	disturbing := slices.DeleteFunc(slices.Clone(steps), func(s step.Step) bool { return s.Disruption != step.Running })
	found := EnginesChanged(now, live, disturbing, problems)
	for i := range live {
		l := &live[i]
		if l.Engine != nil && slices.ContainsFunc(ends, func(e api.LeaseEnd) bool { return e.Lease == l.ID }) {
			found = append(found, l.Engine.Name())
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// NameEngines adds to the refusal of a change of what is in use the leases that it would end, the engines whose jobs may have a GPU that it
// changes, and the commands that drain those whose jobs are in the way, refused.
func NameEngines(err error, ends []api.LeaseEnd, engines, refused []string, host, command string) {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Kind != api.KindInUse {
		return
	}
	e.Leases, e.Engines = ends, engines
	if way := DrainHint(refused, host, command); way != "" {
		e.Hint = strings.TrimPrefix(e.Hint+"; "+way, "; ")
	}
}

// DrainHint is what to do where jobs of engines are in the way of a change: the commands that drain, change and resume the node. Only apply
// drains itself; all commands that change GPUs have a flag for engines without jobs.
func DrainHint(engines []string, host, command string) string {
	applies := strings.HasPrefix(command, "gpushare apply ")
	var ways []string
	for _, engine := range engines {
		switch engine {
		case api.OwnerSlurm:
			way := fmt.Sprintf(
				"'scontrol update nodename=%[2]s state=drain reason=gpushare', then '%[1]s' when its jobs have ended, then "+
					"'scontrol update nodename=%[2]s state=resume'",
				command,
				host,
			)
			if applies {
				way = fmt.Sprintf(
					"'%s --drain' drains the node in Slurm, waits for its jobs, changes it and resumes it; by hand: %s", command, way,
				)
			}
			ways = append(ways, way)
		case api.OwnerKubernetes:
			ways = append(ways, fmt.Sprintf(
				"'kubectl cordon %[2]s' keeps new pods out ('kubectl taint nodes %[2]s gpushare=apply:NoExecute' ends those that are there), "+
					"then '%[1]s' when they have ended, then 'kubectl uncordon %[2]s' ('kubectl taint nodes %[2]s gpushare-')",
				command+" --drained "+engine,
				host,
			))
		}
	}
	return strings.Join(ways, "; ")
}

// EngineWarnings say what an engine must be informed of, and which leases it did not place stay on its GPUs.
func EngineWarnings(want *state.Desired, n *observe.Node, live []lease.Lease) []string {
	var out []string
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if ownerUnder(want, g.Identity.UUID) != api.OwnerSlurm || g.Err != nil {
			continue
		}
		if fewer := fewerInstances(want.GPUs[g.Identity.UUID], g); len(fewer) > 0 {
			out = append(out, fmt.Sprintf(
				"%s has fewer MIG instances from then on (%s): Slurm drains a node that reports fewer than Gres= in slurm.conf says (INVAL), "+
					"until it is resumed: write gres.conf and Gres= again ('gpushare slurm gres'), restart slurmd, then "+
					"'scontrol update nodename=NAME state=resume'",
				g.Identity.Name(),
				strings.Join(fewer, ", "),
			))
		}
	}
	for i := range live {
		l := &live[i]
		for _, id := range l.Place.GPUs {
			e := want.GPUs[id]
			if e == nil || e.Engine() == "" || l.Engine != nil && l.Engine.Name() == e.Engine() ||
				l.Engine == nil && slices.Contains(e.ShareWith, api.ShareWithLocal) {
				continue
			}
			out = append(out, fmt.Sprintf(
				"lease %s (%s) stays on %s until it ends: %s, which places the leases there, does not know of it",
				l.ID, l.User, ShortName(n, id), e.Engine(),
			))
		}
	}
	return out
}

// fewerInstances are the profiles of which the GPU has fewer instances under a spec, each as "3g.40gb: 2, then 1".
func fewerInstances(e *api.GPUSpec, g *observe.GPU) []string {
	if g.Profiles == nil || e.MIG != nil && e.MIG.Dynamic {
		return nil
	}
	have := map[string]int{}
	for i := range g.Instances {
		have[g.Profiles.GIName(g.Instances[i].ProfileID)]++
	}
	left := maps.Clone(have)
	if e.Mode == api.ModeMIG && e.MIG != nil {
		for i := range e.MIG.Layout {
			views := layoutProfiles(&state.Desired{}, g.Identity.UUID, e.MIG.Layout[i:i+1], g.Profiles)
			// An item by its properties may be of several profiles: the first that is there and not counted yet.
			for j := range views {
				if left[views[j].Name] > 0 {
					left[views[j].Name]--
					break
				}
			}
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(left)) {
		if n := left[name]; n > 0 {
			out = append(out, fmt.Sprintf("%s: %d, then %d", name, have[name], have[name]-n))
		}
	}
	return out
}
