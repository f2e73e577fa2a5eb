package converge

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

// updateInventory reports how the GPUs of the node differ from those that the spec in force was applied to: one is missing or was
// replaced, one is new, or one has another index. The spec in force keeps its meaning, because it knows its GPUs by UUID.
func (cv *Converger) updateInventory(want *state.Desired, node *observe.Node) {
	if node.DriverErr != nil {
		return // What was known stays.
	}
	if err := cv.State.RecordMissing(node); err != nil {
		cv.Log.Warn("cannot record which GPUs are missing", "error", err)
	}
	if err := cv.State.RecordProfiles(state.ReportedProfiles(node)); err != nil {
		cv.Log.Warn("cannot record the MIG profiles of GPUs", "error", err)
	}
	was := cv.State.Stored().Identities
	found := map[string]api.Condition{}
	for _, id := range node.Missing {
		if want.Optional(id.UUID) {
			continue
		}
		found[string(id.UUID)] = missingCondition(was[id.UUID], id.UUID, node)
	}
	byIndex := selectsByIndex(want.Spec)
	for i := range node.GPUs {
		id := &node.GPUs[i].Identity
		old, known := was[id.UUID]
		switch {
		case len(was) == 0 || id.Index < 0 || id.Error != "":
		case !known && want.GPUs[id.UUID] == nil && want.Spec != nil:
			found[string(id.UUID)] = api.Condition{
				GPU: string(id.UUID),
				Message: fmt.Sprintf(
					"GPU %d (%s at %s) is new: it was not there when the spec was applied, so it is unmanaged and takes no lease",
					id.Index, id.Model, id.PCI,
				),
				Hint: "'gpushare apply' of a spec that selects it uses it",
			}
		case known && byIndex && old.Index != id.Index && want.GPUs[id.UUID] != nil:
			found[string(id.UUID)] = api.Condition{
				GPU: string(id.UUID),
				Message: fmt.Sprintf(
					"GPU %d had the index %d when the spec was applied: it is used as before, but the next apply of this spec would select others by index",
					id.Index,
					old.Index,
				),
				Hint: "'gpushare apply --check' shows what that would change; select GPUs by uuid or pci",
			}
		}
	}
	cv.Conditions.Replace("inventory", found)
}

// missingCondition reports a GPU of the spec that the driver does not find, and which one has its place.
func missingCondition(was gpu.Identity, id gpu.UUID, node *observe.Node) api.Condition {
	c := api.Condition{
		GPU: string(id), Message: fmt.Sprintf("%s of the spec is missing: the driver does not find it", id),
		Hint: state.MissingHint,
	}
	if was.PCI == "" || was.Index < 0 {
		return c
	}
	c.Message = fmt.Sprintf("GPU %d of the spec (%s, %s at %s) is missing: the driver does not find it", was.Index, id, was.Model, was.PCI)
	i := slices.IndexFunc(node.GPUs, func(g observe.GPU) bool { return g.Identity.PCI == was.PCI })
	if i < 0 {
		return c
	}
	c.Message = fmt.Sprintf("GPU %d of the spec (%s) was replaced: %s is at %s now", was.Index, id, node.GPUs[i].Identity.UUID, was.PCI)
	c.Hint = "'gpushare apply' of the spec uses the new one where it is selected by index, address or model; a uuid must be changed first"
	return c
}

// selectsByIndex reports whether a spec names GPUs by their indexes.
func selectsByIndex(s *api.Spec) bool {
	if s == nil {
		return false
	}
	if slices.ContainsFunc(s.GPUs, func(g api.GPUSpec) bool { return len(g.Select.Index) > 0 }) {
		return true
	}
	return slices.ContainsFunc(s.Tenants, func(t api.TenantSpec) bool {
		return slices.ContainsFunc(t.Grants, func(g api.GrantSpec) bool { return g.GPUs != nil && len(g.GPUs.Index) > 0 })
	})
}
