package devicepolicy

import (
	"path/filepath"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
)

// NodeNames are the device nodes of what was observed.
type NodeNames struct {
	root string
	hw   isolation.Hardware
}

// NodeNames returns them for an observation. What cannot be read has none.
func (pol *Policy) NodeNames(node *observe.Node) NodeNames {
	hw, err := pol.hardware(node, nil)
	if err != nil {
		pol.Log.Debug("cannot name device nodes", "error", err)
	}
	return NodeNames{pol.Hosts.Root, hw}
}

// GPU is the node of a GPU; empty if it is not known.
func (n NodeNames) GPU(id *gpu.Identity) string {
	if name := isolation.NodeOf(id); name != "" {
		return filepath.Join(n.root, name)
	}
	return ""
}

// Instance are the nodes of an instance, or of one compute instance of it; none if they are not known.
func (n NodeNames) Instance(id gpu.UUID, at gpu.Placement, compute gpu.UUID) []string {
	out := isolation.NodesOf(&n.hw, isolation.Target{GPU: id, Instance: &at, Compute: compute})
	for i := range out {
		out[i] = filepath.Join(n.root, out[i])
	}
	return out
}
