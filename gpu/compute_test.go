package gpu

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestComputeOrderFitsEverySet tries every set of compute instances that does not exceed its GPU instance. Created in
// this order at the first free start, all of them fit, so a planner may count slices.
func TestComputeOrderFitsEverySet(t *testing.T) {
	sets := 0
	var try func(width, left, most uint32, set []NewCompute)
	try = func(width, left, most uint32, set []NewCompute) {
		sets++
		taken := uint32(0)
		for _, c := range ComputeOrder(set) {
			placed := false
			for at := uint32(0); at+c.Slices <= width && !placed; at += ComputeAlign(c.Slices) {
				bits := (uint32(1)<<c.Slices - 1) << at
				if placed = taken&bits == 0; placed {
					taken |= bits
				}
			}
			if !placed {
				t.Errorf("%v in %d slices: %d slices do not fit", set, width, c.Slices)
			}
		}
		for _, n := range []uint32{1, 2, 3, 4, 7} {
			if n <= left && n <= most {
				try(width, left-n, n, append(set[:len(set):len(set)], NewCompute{Slices: n}))
			}
		}
	}
	for _, width := range []uint32{1, 2, 3, 4, 7} { // the sizes of all published GPU instances
		try(width, width, width, nil)
	}
	if sets < 30 {
		t.Errorf("only %d sets were tried", sets)
	}
}

func TestComputeOrder(t *testing.T) {
	at := &Placement{Start: 2, Size: 1}
	want := []NewCompute{{Slices: 1}, {Slices: 2}, {Slices: 1, Placement: at}, {Slices: 4}, {Slices: 3}}
	got := ComputeOrder(want)
	if d := cmp.Diff([]NewCompute{{Slices: 1, Placement: at}, {Slices: 4}, {Slices: 2}, {Slices: 3}, {Slices: 1}}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if want[0].Slices != 1 || want[1].Slices != 2 {
		t.Error("the caller's order was changed")
	}
}
