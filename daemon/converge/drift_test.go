package converge

import (
	"testing"

	devices "github.com/gpushare/gpushare/cgroup/device"
)

// A filter that was read belongs to the cgroup from which it was read. If the unit is started again after the reading, its new
// cgroup never had the filter: that it lacks it is no drift. That the same cgroup lacks it is.
func TestFilterOfAUnitThatWasStartedAgain(t *testing.T) {
	const cg = "/system.slice/cron.service"
	want := []devices.LoginFilterState{{Cgroup: cg}}
	for _, c := range []struct {
		name  string
		now   uint64
		drift bool
	}{{"the same cgroup", 7, true}, {"another cgroup", 8, false}, {"no cgroup", 0, false}} {
		x := &drift{}
		x.setFiltersInSync(want, []devices.LoginFilterState{{Cgroup: cg, ID: 7}})
		found := x.findFilters(want, nil, func(string) uint64 { return c.now }, 0)
		if _, ok := found[cg]; ok != c.drift {
			t.Errorf("%s: %v", c.name, found)
		}
	}
}

// A filter that gpushare has written since it was in sync may have been read before that: a lease began and ended meanwhile, and what it
// could open is no drift. What is read of a filter that only others can have written is.
func TestFilterThatWasWrittenMeanwhile(t *testing.T) {
	const cg = "/system.slice/cron.service"
	want := []devices.LoginFilterState{{Cgroup: cg}}
	other := devices.LoginFilter{Closed: []devices.Range{devices.All(195)}}
	for writes, is := range map[uint64]bool{3: true, 5: false} {
		x := &drift{}
		x.setFiltersInSync(want, []devices.LoginFilterState{{Cgroup: cg, ID: 7, Writes: 3}})
		found := x.findFilters(want, []devices.LoginFilterState{{Cgroup: cg, Filter: other, ID: 7, Writes: 4}},
			func(string) uint64 { return 7 }, writes)
		if _, ok := found[cg]; ok != is {
			t.Errorf("%d writes: %v", writes, found)
		}
	}
}
