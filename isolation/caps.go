package isolation

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/locks"
)

// Caps are the minors of the driver's MIG capabilities by name, as in "gpu0/gi2/access" and "gpu0/gi2/ci0/access". The
// number of a GPU is the minor of its device node.
type Caps map[string]uint32

// ParseCaps reads /proc/driver/nvidia-caps/mig-minors. Two names for one minor are an error: a rule for one of them would
// also allow the other.
func ParseCaps(text string) (Caps, error) {
	caps := Caps{}
	names := map[uint32]string{}
	line := 0
	for words := range strings.Lines(text) {
		line++
		f := strings.Fields(words)
		if len(f) == 0 {
			continue
		}
		if len(f) != 2 {
			return nil, fmt.Errorf("cannot read MIG capabilities: line %d is not a name and a minor", line)
		}
		n, err := strconv.ParseUint(f[1], 10, 20) // the kernel's minors have 20 bits
		if err != nil {
			return nil, fmt.Errorf("cannot read MIG capabilities: line %d: invalid minor %q", line, f[1])
		}
		if old, taken := names[uint32(n)]; taken && old != f[0] {
			return nil, fmt.Errorf("cannot read MIG capabilities: line %d: %s and %s have the same minor", line, old, f[0])
		}
		if old, had := caps[f[0]]; had && old != uint32(n) {
			return nil, fmt.Errorf("cannot read MIG capabilities: line %d: %s has two minors", line, f[0])
		}
		caps[f[0]], names[uint32(n)] = uint32(n), f[0]
	}
	return caps, nil
}

// lastCaps are the capabilities that were parsed last. A driver has hundreds of them and assigns others only when it is
// loaded again, and they are read for every observation of the node.
var lastCaps struct {
	mu   locks.Mutex[locks.AdapterLeaf] // guards both
	text string
	caps Caps
}

// parseCapsOnce is ParseCaps with a cache. The caller must not modify the result.
func parseCapsOnce(text string) (Caps, error) {
	lastCaps.mu.Lock()
	defer lastCaps.mu.Unlock()
	if lastCaps.caps != nil && lastCaps.text == text {
		return lastCaps.caps, nil
	}
	caps, err := ParseCaps(text)
	if err == nil {
		lastCaps.text, lastCaps.caps = text, caps
	}
	return caps, err
}

// GI is the minor of a GPU instance's capability.
func (c Caps) GI(gpuMinor int, gi uint32) (uint32, bool) {
	n, ok := c[fmt.Sprintf("gpu%d/gi%d/access", gpuMinor, gi)]
	return n, ok
}

// CI is the minor of a compute instance's capability.
func (c Caps) CI(gpuMinor int, gi, ci uint32) (uint32, bool) {
	n, ok := c[fmt.Sprintf("gpu%d/gi%d/ci%d/access", gpuMinor, gi, ci)]
	return n, ok
}
