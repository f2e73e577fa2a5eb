package specs

import (
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// conditionDefault is the kind of the condition that a spec in force means something else than when it was accepted.
const conditionDefault = "default"

// overuseByDefault names the tenants of a spec as written that limit GPU memory and do not say what happens above it.
func overuseByDefault(s *api.Spec) (names []string) {
	for i := range s.Tenants {
		t := &s.Tenants[i]
		if t.Overuse != nil && t.Overuse.GPUMemory != "" {
			continue
		}
		for j := range t.Grants {
			g := &t.Grants[j]
			if g.Timeslice != nil && g.Timeslice.GPUMemory != nil || g.MPS != nil && g.MPS.GPUMemory != nil {
				names = append(names, t.Name)
				break
			}
		}
	}
	return names
}

// reportDefault reports that the version that accepted the spec had another default. The report ends when a spec is accepted, or an
// administrator acknowledges it.
func (ss *Specs) reportDefault(was string, tenants []string) {
	message := "overuse.gpu_memory of " + text.Plural(len(tenants), "tenant") + " " + strings.Join(tenants, ", ") +
		" is not written, and its default is " + api.DefaultOveruse + " since this version (" + was +
		" before): a lease above its GPU memory is frozen, and stopped after its grace"
	ss.Conditions.Set(
		conditionDefault, "overuse", message,
		"write what you want into the spec, as overuse: {gpu_memory: "+was+"}, and apply it: 'gpushare get' prints the spec in force",
	)
	ss.Log.Warn(
		"a default of the spec has changed since it was accepted",
		"key",
		"overuse.gpu_memory",
		"was",
		was,
		"now",
		api.DefaultOveruse,
	)
}
