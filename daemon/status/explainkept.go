package status

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
)

// explainKept says what the kernel keeps of a tenant that the spec does not have, on a node that only observes; nil: nothing.
func (v *Viewer) explainKept(tenant string) *api.Explanation {
	if v.State.Desired().Enforcing() {
		return nil // Its slices are removed, or a condition says why not.
	}
	e := &api.Explanation{
		SchemaVersion: 1,
		Name:          tenant,
		Text:          "not in the spec any more; the kernel keeps what an earlier one set",
	}
	e.Rules = v.explainLimits(&api.TenantSpec{Name: tenant})
	for i := range v.Observer.Last().Slices {
		s := &v.Observer.Last().Slices[i]
		if s.Name.Tenant != tenant || s.Name.Grant == "" || !s.Closed {
			continue
		}
		e.Rules = append(e.Rules, v.keptWhileObserving(api.Rule{
			What:     "devices of " + s.Name.Grant,
			Desired:  ruleNames(s.Devices),
			Enforced: true,
			By:       fmt.Sprintf("the device program of %s, read back", s.Path),
		}))
	}
	if len(e.Rules) == 0 {
		return nil
	}
	return e
}
