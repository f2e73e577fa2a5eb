package change

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// fabric reads it of some GPUs, for as long as a GPU may take to answer. What is not known by then is told as not known.
func (cs *Changes) fabric(ctx context.Context, ids ...gpu.UUID) planner.Fabric {
	ctx, cancel := context.WithTimeout(ctx, cs.Settings.AnswerTimeout)
	defer cancel()
	return readFabric(ctx, cs.Settings.HostRoot, ids, cs.Driver.NVLinks)
}

// readFabric reads it below root, and of some GPUs.
func readFabric(ctx context.Context, root string, ids []gpu.UUID, query func(context.Context, gpu.UUID) (gpu.NVLinks, error)) planner.Fabric {
	f := planner.Fabric{Links: map[gpu.UUID]planner.Links{}}
	// A folder for each switch, by its PCI address; no such folder where the switches' driver found none.
	if entries, err := os.ReadDir(filepath.Join(root, "proc/driver/nvidia-nvswitch/devices")); err == nil {
		f.Switches = len(entries)
	}
	var o external.Host
	o.Processes(root)
	f.Manager = o.FabricManager

	var wg sync.WaitGroup
	var mu locks.Mutex[locks.Leaf] // guards f.links among the goroutines
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

// resetWarnings says of each GPU that some steps reset what goes with it, and who is in the way on others. Nothing is asked of
// any GPU when none is reset.
func (cs *Changes) resetWarnings(ctx context.Context, steps []step.Step, node *observe.Node, use planner.Usage) []string {
	reset := planner.ResetsOf(steps)
	if len(reset) == 0 {
		return nil
	}
	f := cs.fabric(ctx, reset...)
	return f.ResetWarnings(reset, node, use)
}

// refusedResetHint is what goes with the first reset that nobody allowed; empty when no GPU is without its mode for that.
func (cs *Changes) refusedResetHint(ctx context.Context, problems map[gpu.UUID]error, node *observe.Node) string {
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		if errors.Is(problems[id], gpu.ErrResetRequired) {
			f := cs.fabric(ctx, id)
			return "what goes with a reset of " + planner.ShortName(node, id) + ": " + f.ResetEffects(id, node, nil)
		}
	}
	return ""
}
