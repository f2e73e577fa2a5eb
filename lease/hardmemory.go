package lease

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// RequiresHardMemory reports whether the grant accepts only a limit of GPU memory that no process can exceed.
func (g *Grant) RequiresHardMemory() bool { return g.Spec.Accept == api.AcceptHard && g.memory() > 0 }

// notHard returns why the limit of one more lease of the grant would not be hard on this GPU; empty if it would be, or if that
// is not known.
func (g *Grant) notHard(d *GPUView, t *gpuUsage) string {
	if !g.RequiresHardMemory() {
		return ""
	}
	if own := t.shares[g.Key()]; d.NoHardMemory == "" && d.HardByLease && own != nil && own.leases > 0 {
		return "the driver limits each lease alone there, and the grant has a lease on it"
	}
	return d.NoHardMemory
}

// NeverHard returns the first grant that accepts only a hard limit of GPU memory although no GPU that it may use can have
// one, with the reason; nil if there is none.
func NeverHard(v *View) (*Grant, string) {
	for i := range v.Grants {
		g := &v.Grants[i]
		if !g.RequiresHardMemory() {
			continue
		}
		var reasons []string
		possible := false
		for j := range v.GPUs {
			if d := &v.GPUs[j]; g.mayUse(d) {
				possible = possible || d.NoHardMemory == ""
				reasons = append(reasons, fmt.Sprintf("%s: %s", d.name(), d.NoHardMemory))
			}
		}
		if !possible && len(reasons) > 0 {
			return g, strings.Join(reasons, "; ")
		}
	}
	return nil, ""
}
