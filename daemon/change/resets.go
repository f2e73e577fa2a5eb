package change

import (
	"context"
	"errors"
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
func (cs *Changes) resetWarnings(ctx context.Context, steps []step.Step, node *observe.Node, use planner.Usage) []string {
	reset := planner.ResetsOf(steps)
	if len(reset) == 0 {
		return nil
	}
	f := cs.fabric(ctx, reset...)
	return f.ResetWarnings(reset, node, use)
}

// refusedResetHint describes the effects of the first reset that was not allowed; empty without one.
func (cs *Changes) refusedResetHint(ctx context.Context, problems map[gpu.UUID]error, node *observe.Node) string {
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		if errors.Is(problems[id], gpu.ErrResetRequired) {
			f := cs.fabric(ctx, id)
			return "effects of a reset of " + planner.ShortName(node, id) + ": " + f.ResetEffects(id, node, nil)
		}
	}
	return ""
}
