package change

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// fabric reads the NVLinks of some GPUs, within the timeout of a driver call that only reads.
func (cs *Changes) fabric(ctx context.Context, ids ...gpu.UUID) planner.Fabric {
	ctx, cancel := context.WithTimeout(ctx, cs.Settings.AnswerTimeout)
	defer cancel()
	return readFabric(ctx, cs.Settings.HostRoot, ids, cs.Driver.NVLinks)
}

// readFabric reads the NVSwitches and the fabric manager of the host at root, and the NVLinks of some GPUs.
func readFabric(
	ctx context.Context, root string, ids []gpu.UUID, query func(context.Context, gpu.UUID) (gpu.NVLinks, error),
) planner.Fabric {
	f := planner.Fabric{Links: map[gpu.UUID]planner.Links{}}
	// The driver of the NVSwitches has one directory for each, named by its PCI address.
	if entries, _, err := boundedread.Entries(filepath.Join(root, "proc/driver/nvidia-nvswitch/devices"), boundedread.Files); err == nil {
		f.Switches = len(entries)
	}
	var o external.Host
	o.Processes(root)
	f.Manager = o.FabricManager

	var wg sync.WaitGroup
	var mu locks.Mutex[locks.Leaf] // guards f.Links
	for _, id := range ids {
		wg.Go(func() {
			l, err := query(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			f.Links[id] = planner.Links{NVLinks: l, Err: err}
		})
	}
	wg.Wait()
	return f
}

// resetWarnings are the warnings of a plan about its resets. Without a reset no GPU is queried.
func (cs *Changes) resetWarnings(ctx context.Context, d *draft, steps []step.Step, node *observe.Node) []string {
	reset := planner.ResetsOf(steps)
	if len(reset) == 0 {
		return nil
	}
	return cs.fabricOf(ctx, d, reset).ResetWarnings(reset, node, d.use)
}

// refusedResetHint describes the effects of the first reset that was not allowed; empty without one.
func (cs *Changes) refusedResetHint(ctx context.Context, d *draft, node *observe.Node) string {
	ids := slices.Sorted(maps.Keys(d.hardware.Resets))
	if len(ids) == 0 {
		return ""
	}
	first := slices.MinFunc(ids, func(a, b gpu.UUID) int { return cmp.Compare(indexOf(node, a), indexOf(node, b)) })
	return "effects of a reset of " + planner.ShortName(node, first) + ": " + cs.fabricOf(ctx, d, ids).ResetEffects(first, node, ids)
}

// indexOf is the place of a GPU among those of the node.
func indexOf(node *observe.Node, id gpu.UUID) int {
	return slices.IndexFunc(node.GPUs, func(g observe.GPU) bool { return g.Identity.UUID == id })
}

// fabricOf reads the NVLinks of the GPUs that a plan resets, once.
func (cs *Changes) fabricOf(ctx context.Context, d *draft, ids []gpu.UUID) *planner.Fabric {
	missing := func(id gpu.UUID) bool { _, known := d.fabric.Links[id]; return !known }
	if d.fabric == nil || slices.ContainsFunc(ids, missing) {
		f := cs.fabric(ctx, ids...)
		d.fabric = &f
	}
	return d.fabric
}
