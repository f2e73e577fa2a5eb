package planner

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// Fabric is the NVLink connections between GPUs, as far as a reset of one affects the others.
type Fabric struct {
	Switches int // number of NVSwitches: they link every GPU with every other
	Manager  int // pid of the fabric manager; 0 when it does not run
	Links    map[gpu.UUID]Links
}

// Links is where the NVLinks of one GPU lead, or why that is unknown.
type Links struct {
	gpu.NVLinks
	Err error
}

// ResetEffects describes what a reset of a GPU affects, before an administrator allows it. reset are the GPUs that the plan
// resets.
func (f *Fabric) ResetEffects(id gpu.UUID, node *observe.Node, reset []gpu.UUID) string {
	l := f.Links[id]
	parts := linkedGPUs(l.Peers, node, reset)
	const together = "join it with every other GPU there, and some boards are only reset together"
	switch {
	case f.Switches > 0:
		parts = append(parts, fmt.Sprintf("%d NVSwitches of this host %s", f.Switches, together))
	case l.Switches > 0:
		parts = append(parts, fmt.Sprintf("%d of its NVLinks lead to NVSwitches, which %s", l.Switches, together))
	}
	switch {
	case l.Err != nil:
		parts = append(
			parts,
			fmt.Sprintf(
				"the GPUs that a bridge joins it with are unknown (%v): 'nvidia-smi nvlink --status' may list them; they must be idle too",
				l.Err,
			),
		)
	case l.Unknown > 0:
		parts = append(parts, fmt.Sprintf("%d of its NVLinks lead to devices that the driver does not name", l.Unknown))
	case len(parts) == 0 && l.Down > 0:
		parts = append(parts, fmt.Sprintf("NVLink joins it with no other GPU: its %d links are down", l.Down))
	case len(parts) == 0:
		parts = append(parts, "NVLink joins it with no other GPU")
	}
	switch {
	case f.Manager != 0:
		parts = append(parts, fmt.Sprintf("the fabric manager runs (pid %d)", f.Manager))
	case f.Switches > 0:
		parts = append(parts, "the fabric manager does not run: after a reset no GPU can be used until it runs")
	default:
		parts = append(parts, "no fabric manager runs")
	}
	return strings.Join(parts, "; ")
}

// linkedGPUs names the GPUs that NVLink bridges join with a GPU. GPUs that the plan resets too are named separately.
func linkedGPUs(peers []string, node *observe.Node, reset []gpu.UUID) []string {
	var idle, resetToo []string
	for _, pci := range peers {
		switch g := atAddress(node, pci); {
		case g == nil:
			idle = append(idle, "a GPU at "+pci+" that is not visible here")
		case slices.Contains(reset, g.Identity.UUID):
			resetToo = append(resetToo, gpuName(g))
		default:
			idle = append(idle, gpuName(g))
		}
	}
	var out []string
	if len(idle) > 0 {
		out = append(out, "NVLink joins it with "+joinWords(idle)+", which must be idle too")
	}
	if len(resetToo) > 0 {
		out = append(out, "NVLink joins it with "+joinWords(resetToo)+", to be reset too")
	}
	return out
}

// busyPeers reports the GPUs that must be idle for the resets and are in use. GPUs that are reset themselves are not among
// them: the plan names their users already.
func (f *Fabric) busyPeers(node *observe.Node, reset []gpu.UUID, use Usage) []string {
	joined := map[gpu.UUID][]string{} // peer → GPUs that are reset
	for _, id := range reset {
		for _, pci := range f.Links[id].Peers {
			if g := atAddress(node, pci); g != nil && !slices.Contains(reset, g.Identity.UUID) {
				joined[g.Identity.UUID] = append(joined[g.Identity.UUID], ShortName(node, id))
			}
		}
	}
	var out []string
	for _, id := range slices.Sorted(maps.Keys(joined)) {
		g, _ := node.GPU(id)
		peer := *g
		peer.MIG.Resetless = nil // A process that only has it open blocks the reset too.
		if users, _ := inUseBy(&peer, nil, use); len(users) > 0 {
			out = append(
				out,
				fmt.Sprintf(
					"%s is in use by %s, and must be idle for the reset of %s: the driver may refuse the reset, or those processes may fail",
					gpuName(g),
					step.Join(users),
					joinWords(joined[id]),
				),
			)
		}
	}
	return out
}

// atAddress finds a GPU by its PCI address; nil when the node has none there.
func atAddress(node *observe.Node, pci string) *observe.GPU {
	i := slices.IndexFunc(node.GPUs, func(g observe.GPU) bool { return g.Identity.PCI == pci })
	if i < 0 {
		return nil
	}
	return &node.GPUs[i]
}

func gpuName(g *observe.GPU) string {
	return fmt.Sprintf("%s (%s)", g.Identity.Name(), g.Identity.UUID)
}

// ShortName is "GPU 1": for a text that also has the UUID.
func ShortName(node *observe.Node, id gpu.UUID) string {
	if g, ok := node.GPU(id); ok {
		return g.Identity.Name()
	}
	return string(id)
}

// joinWords joins words with commas and "and".
func joinWords(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// ResetsOf returns the GPUs that the steps reset, in the order of the steps.
func ResetsOf(steps []step.Step) []gpu.UUID {
	var out []gpu.UUID
	for i := range steps {
		var args mig.ModeArgs
		if steps[i].Kind != mig.KindMode || json.Unmarshal(steps[i].Args, &args) != nil || !args.Reset {
			continue
		}
		out = append(out, gpu.UUID(steps[i].GPU))
	}
	return out
}

// ResetWarnings are the warnings of a plan about its resets.
func (f *Fabric) ResetWarnings(reset []gpu.UUID, node *observe.Node, use Usage) []string {
	out := make([]string, 0, len(reset))
	for _, id := range reset {
		name := string(id)
		if g, ok := node.GPU(id); ok {
			name = gpuName(g)
		}
		out = append(out, name+" is reset, and no GPU outside of this plan: "+f.ResetEffects(id, node, reset))
	}
	return append(out, f.busyPeers(node, reset, use)...)
}
