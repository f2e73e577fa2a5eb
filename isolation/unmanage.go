package isolation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/step"
)

// PlanUnmanage returns the steps that remove every slice; none when there are none. A slice that contains processes of no
// lease is opened and remains until they exit: gpushare must not stop them, and its limits must not apply to them.
func PlanUnmanage(observed []cgroup.SliceState, info cgroup.Info, use map[cgroup.SliceName]Use) []step.Step {
	all := slices.DeleteFunc(slices.Clone(observed), func(s cgroup.SliceState) bool { return s.Name.Tenant == "" })
	// Grants come before their tenants: a slice that has children cannot be removed.
	slices.SortFunc(all, func(a, b cgroup.SliceState) int { return compareNames(b.Name, a.Name) })
	var remove, open []step.Step
	for _, s := range all {
		was := asSlice(s)
		if found := unattributedIn(s.Name, use); len(found) > 0 {
			to := cgroup.Slice{Name: s.Name}
			if equal(was, to, info) {
				continue
			}
			open = append(open, step.Step{
				// Not of phase GrantAccess: it grants nothing, and later observations must not change it.
				Kind: KindSet, Phase: step.Change, Args: step.Must(to), Undo: step.Must(Previous{&was}),
				Text:   fmt.Sprintf("open the cgroup slice of %s: %s", s.Name, difference(was, to, info)),
				Reason: "it contains processes of no lease: " + firstFew(found), Disruption: step.None,
			})
			continue
		}
		st := step.Step{
			Kind: KindRemove, Phase: step.RevokeAccess, Args: step.Must(s.Name), Undo: step.Must(Previous{&was}),
			Text: fmt.Sprintf("remove the cgroup slice of %s", s.Name), Reason: "the node is unmanaged", Disruption: step.Idle,
		}
		if st.Disturbs = leasesIn(use[s.Name]); len(st.Disturbs) > 0 {
			st.Disruption = step.Running
		}
		remove = append(remove, st)
	}
	return append(remove, open...)
}

// unattributedIn names the processes of no lease in a slice and its children.
func unattributedIn(name cgroup.SliceName, use map[cgroup.SliceName]Use) []string {
	var found []string
	for n, u := range use {
		if n == name || name.Grant == "" && n.Tenant == name.Tenant {
			found = append(found, step.Texts(u.Unattributed)...)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// firstFew names the first few, and counts the rest.
func firstFew(found []string) string {
	const most = 3
	if len(found) <= most+1 {
		return strings.Join(found, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(found[:most], ", "), len(found)-most)
}
