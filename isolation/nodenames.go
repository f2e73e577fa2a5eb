package isolation

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// NodeOf is the device node of a GPU; empty if it is not known.
func NodeOf(id *gpu.Identity) string {
	if id.Minor < 0 || id.Minor == controlMinor {
		return ""
	}
	return fmt.Sprintf("/dev/nvidia%d", id.Minor)
}

// NodesOf are the device nodes of an instance, or of one of its compute instances: that of the GPU, of the GPU instance, and of the
// compute instances. nil if they are not known.
func NodesOf(h *Hardware, t Target) []string {
	rules, err := targetRules(h, t)
	if err != nil {
		return nil
	}
	var out []string
	for i := range rules {
		if !slices.Contains(out, rules[i].Name) {
			out = append(out, rules[i].Name)
		}
	}
	return out
}
