package planner

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// IrreversibleWarnings name the steps that have no undo although they destroy something, and what OneWayWarnings name.
func IrreversibleWarnings(steps []step.Step, node *observe.Node) (out []string) {
	for i := range steps {
		s := &steps[i]
		if g, ok := node.GPU(gpu.UUID(s.GPU)); ok && s.Irreversible != "" {
			out = append(
				out,
				fmt.Sprintf(
					"%s: the step '%s' cannot be undone: %s. If a later step fails, the GPU is held without it", g.Identity.Name(),
					s.Text, s.Irreversible,
				),
			)
		}
	}
	return append(out, OneWayWarnings(steps, node)...)
}

// OneWayWarnings name what steps create that only --force removes again, because this driver does not report what an undo needs. A
// driver whose library has the functions may report nothing: that is known once a compute instance was read.
func OneWayWarnings(steps []step.Step, node *observe.Node) (out []string) {
	for i := range steps {
		s := &steps[i]
		g, ok := node.GPU(gpu.UUID(s.GPU))
		if !ok {
			continue
		}
		var args mig.InstanceArgs
		if s.Kind == mig.KindCreate && json.Unmarshal(s.Args, &args) == nil && len(args.Compute) > 1 && !identifiesCompute(g, node) {
			out = append(out, onlyForce(g, args.String(), g.MIG.Missing.NoIdentity()))
		}
	}
	return out
}

// IrreversibleInstances are the same warnings about the instances that are on the GPUs of a spec now.
func IrreversibleInstances(want *state.Desired, node *observe.Node) (out []string) {
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.Err != nil || g.Profiles == nil || !want.Manages(g.Identity.UUID) {
			continue
		}
		for _, in := range g.Instances {
			if why := mig.Irreversible(in, g.MIG.Missing); why != "" {
				out = append(out, onlyForce(g, InstanceName(g, &mig.Present{Instance: in}), why))
			}
		}
	}
	return out
}

// Irreversible says why an instance of a GPU could not be created again as it was; empty: it could.
func Irreversible(g *observe.GPU, in gpu.Instance) string { return mig.Irreversible(in, g.MIG.Missing) }

func onlyForce(g *observe.GPU, instance, why string) string {
	return fmt.Sprintf(
		"%s: only --force changes or removes %s, because it could not be created again: %s", g.Identity.Name(), instance, why,
	)
}

// identifiesCompute reports whether the driver reports the placement or the UUID of compute instances, as far as this is known: by those
// that exist on the node, else by the functions of the library.
func identifiesCompute(g *observe.GPU, node *observe.Node) bool {
	if c := slices.Concat(computeInstances(g.Instances), computeOfNode(node)); len(c) > 0 {
		return c[0].Again().Exact()
	}
	return g.MIG.Missing.MayIdentify()
}

func computeOfNode(node *observe.Node) (out []gpu.ComputeInstance) {
	for i := range node.GPUs {
		out = append(out, computeInstances(node.GPUs[i].Instances)...)
	}
	return out
}

func computeInstances(instances []gpu.Instance) (out []gpu.ComputeInstance) {
	for _, in := range instances {
		out = append(out, in.Compute...)
	}
	return out
}
