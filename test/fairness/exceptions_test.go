package fairness

import (
	"maps"
	"slices"
	"sync"
	"testing"
)

// TestEveryExceptionHasItsReason checks that each figure of each row is held to the target, or to a limit with a reason, and that there is
// no exception that allows no more than the target, or that no row has.
func TestEveryExceptionHasItsReason(t *testing.T) {
	used := map[*lack]bool{}
	bound, low := map[int]bool{}, map[string]bool{}
	for _, sc := range Scenarios() {
		for _, v := range Variants() {
			l := sc.Limits(v)
			switch missed := l.misses(sc.Target()); {
			case len(missed) > 0 && l.Reason == "":
				t.Errorf("%s, %s: misses the target (%v) without a reason: %+v", sc.Name, v.Name, missed, l)
			case len(missed) == 0 && l.Reason != "":
				t.Errorf("%s, %s: an exception that allows no more than the target %+v: %+v", sc.Name, v.Name, sc.Target(), l)
			}
			if sc.Bound {
				bound[sc.boundException(v)] = true
				continue
			}
			used[sc.lack(v)] = true
			low[sc.Name] = true
		}
	}
	for i, x := range exceptions {
		if !bound[i] {
			t.Errorf("no row has the exception %q, %q", x.scenario, x.variant)
		}
	}
	for _, list := range [][]lack{lacking, lackingProcesses} {
		for i := range list {
			if x := &list[i]; !used[x] {
				t.Errorf("no row has the exception %q, %s", x.scenario, x.samplers)
			}
		}
	}
	for name := range lowLatencyLimits {
		if !low[name] {
			t.Errorf("no row has the limits of %q", name)
		}
	}
}

// needed collects which figures of the exceptions a run of all cells needs.
type needed struct {
	sync.Mutex                            // guards the rest; it is the last in any order
	exceptions map[string]map[figure]bool // of each row and figure that misses the target: whether a cell needs that
}

// add notes the figures of a cell.
func (n *needed) add(sc Scenario, v Variant, f, free Figures) {
	row := sc.exceptionOf(v)
	if row == "" {
		return
	}
	n.Lock()
	defer n.Unlock()
	if n.exceptions == nil {
		n.exceptions = map[string]map[figure]bool{}
	}
	if n.exceptions[row] == nil {
		n.exceptions[row] = map[figure]bool{}
	}
	for _, name := range sc.Limits(v).misses(sc.Target()) {
		n.exceptions[row][name] = n.exceptions[row][name] || !sc.meets(name, f, free, sc.Target())
	}
}

// check fails for each figure of an exception that meets the target by a wide margin in all cells.
func (n *needed) check(t *testing.T) {
	t.Helper()
	n.Lock()
	defer n.Unlock()
	for _, row := range slices.Sorted(maps.Keys(n.exceptions)) {
		for _, name := range slices.Sorted(maps.Keys(n.exceptions[row])) {
			if !n.exceptions[row][name] {
				t.Errorf("%s: %s meets the target by a wide margin with all samplers: it needs no exception", row, name)
			}
		}
	}
}
