package state

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
)

// Proposal is a planned change that is not accepted yet.
type Proposal struct {
	Intent   Intent
	GPU      gpu.UUID // of an intent of one GPU
	Extent   string   // of an intent that removes: how much
	Command  string   // with which the caller asks for it, without options
	YAML     string   // of the spec as it is stored
	Want     *Desired
	Resolved spec.Resolved
	Node     *observe.Node
	Steps    []step.Step
	Plan     api.Plan

	AwaitBoot map[gpu.UUID]bool // the GPUs that a boot of the host brings nearer to the spec: they have no step
}

// Concerns reports whether the change may touch a GPU.
func (p *Proposal) Concerns(id gpu.UUID) bool { return !p.Intent.OneGPU() || p.GPU == id }

// Runs reports whether the change has steps that are carried out: on a node that only observes, those that remove.
func (p *Proposal) Runs() bool { return (p.Want.Enforcing() || p.Intent.Removes()) && len(p.Steps) > 0 }

// Changes reports whether anything follows from the proposal: another spec, or steps that are carried out.
func (p *Proposal) Changes() bool { return p.Intent.Accepts() || p.Runs() }

// RequestsGeneration reports whether the caller asks for an earlier spec by its generation.
func (p *Proposal) RequestsGeneration(generation uint64) bool {
	return p.Command == spec.Command(fmt.Sprintf("generation %d", generation))
}

// AuditText describes an accepted proposal in the audit.
func (p *Proposal) AuditText(force bool) string {
	out := fmt.Sprintf("%d steps, force=%v", len(p.Steps), force)
	if generation, ok := strings.CutPrefix(p.Command, "gpushare rollback "); ok {
		out += ", back to generation " + generation
	}
	return out
}
