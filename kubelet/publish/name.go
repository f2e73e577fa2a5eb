package publish

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// leastDigits is how many digits of its UUID the name of a GPU has, unless another GPU of the node has the same.
const leastDigits = 8

// name is the name of a GPU in the names of devices and counters: gpu- and as much of its UUID as no other GPU has. An index is
// no name: the driver counts the GPUs that it finds, so that after a load without one GPU the index of another is that of a third.
func (n *Node) name(g *api.GPUStatus) string {
	mine := digits(g.UUID)
	length := leastDigits
	for i := range n.Status.GPUs {
		if other := digits(n.Status.GPUs[i].UUID); other != mine {
			length = max(length, common(mine, other)+1)
		}
	}
	return "gpu-" + mine[:min(length, len(mine))]
}

// Called is a GPU in messages: by its index, or its UUID while the driver does not find it.
func Called(g *api.GPUStatus) string {
	if g.Index < 0 {
		return g.UUID
	}
	return fmt.Sprintf("GPU %d", g.Index)
}

// digits is a UUID without its prefix and hyphens.
func digits(uuid string) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(uuid), "gpu-"), "-", "")
}

// common is how many bytes two texts begin with together.
func common(a, b string) int {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	return i
}
