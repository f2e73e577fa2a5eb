package report

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
)

// gpuNames writes GPUs in texts for people as the tables name them: by index. Packages that know a GPU by its UUID alone need no index.
type gpuNames struct {
	index atomic.Pointer[func(uuid string) (index int, ok bool)]
}

// gpuUUID is a UUID, with what is before it if that names the GPU already.
var gpuUUID = regexp.MustCompile(`(\(|\bGPU )?\bGPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`)

// NameGPUs gives the index of a GPU by its UUID, from then on. It may be called with any lock held, and takes none.
func (r *Reporter) NameGPUs(index func(uuid string) (int, bool)) { r.gpus.index.Store(&index) }

// indexOf is the index of a GPU; -1 if it is not known.
func (n *gpuNames) indexOf(uuid string) int {
	if n == nil || n.index.Load() == nil {
		return -1
	}
	of := n.index.Load()
	if i, ok := (*of)(uuid); ok {
		return i
	}
	return -1
}

// compare orders GPUs by index, those without one last.
func (n *gpuNames) compare(a, b string) int {
	i, j := n.indexOf(a), n.indexOf(b)
	return cmp.Or(cmp.Compare(uint(i), uint(j)), cmp.Compare(a, b))
}

// write replaces "GPU UUID" by the index, and puts the index before a UUID without a name. A UUID in parentheses stays: its GPU is
// named before it.
func (n *gpuNames) write(text string) string {
	if n == nil || n.index.Load() == nil || !strings.Contains(text, "GPU-") {
		return text
	}
	return gpuUUID.ReplaceAllStringFunc(text, func(found string) string {
		uuid := found[strings.Index(found, "GPU-"):]
		i := n.indexOf(uuid)
		switch {
		case i < 0 || found[0] == '(':
			return found
		case len(found) > len(uuid):
			return "GPU " + strconv.Itoa(i)
		}
		return "GPU " + strconv.Itoa(i) + " (" + uuid + ")"
	})
}
