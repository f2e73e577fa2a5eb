package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// fabric is how the GPUs of a host are linked, as far as the reset of one concerns the others.
type fabric struct {
	switches int // NVSwitches: every GPU is linked with every other
	manager  int // the fabric manager's pid; 0 when it does not run
}

// readFabric reads it below root.
func readFabric(root string) fabric {
	var f fabric
	// A folder for each switch, by its PCI address; no such folder where the switches' driver found none.
	if entries, err := os.ReadDir(filepath.Join(root, "proc/driver/nvidia-nvswitch/devices")); err == nil {
		f.switches = len(entries)
	}
	var o others
	o.processes(root)
	f.manager = o.fabricManager
	return f
}

// String says it for somebody who is about to have a GPU reset.
func (f fabric) String() string {
	peers := "this host has no NVSwitches; whether a bridge links it with another GPU, 'nvidia-smi nvlink --status' tells: those must be idle too"
	if f.switches > 0 {
		peers = fmt.Sprintf("%d NVSwitches link it with every other GPU of this host, and some boards are only reset together", f.switches)
	}
	switch {
	case f.manager != 0:
		return fmt.Sprintf("%s; the fabric manager runs (pid %d)", peers, f.manager)
	case f.switches > 0:
		return peers + "; the fabric manager does not run: no GPU can be used after a reset before it does"
	}
	return peers + "; no fabric manager runs"
}

// tellResets says of each GPU that some steps reset what goes with it.
func tellResets(steps []step.Step, node *observe.Node, root string) []string {
	var out []string
	var f *fabric
	for i := range steps {
		var args mig.ModeArgs
		if steps[i].Kind != mig.KindMode || json.Unmarshal(steps[i].Args, &args) != nil || !args.Reset {
			continue
		}
		if f == nil {
			f = new(readFabric(root))
		}
		name := steps[i].GPU
		if g, ok := node.GPU(gpu.UUID(name)); ok {
			name = fmt.Sprintf("GPU %d (%s)", g.Identity.Index, name)
		}
		out = append(out, name+" is reset, and no other: "+f.String())
	}
	return out
}
