package mig

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
)

func TestParsePresent(t *testing.T) {
	for _, tc := range []struct {
		name, items, got string // items between spaces
		err              string
	}{
		{name: "two, one in use", items: "3g.20gb@4! 1g.5gb@0", got: "3g.20gb@4! 1g.5gb@0"},
		{name: "compute instances of one instance", items: "1c.3g.20gb@4 2g.10gb@0 1c.3g.20gb@4!", got: "3g.20gb(1c+1c)@4! 2g.10gb@0"},
		{name: "a compute instance with all slices", items: "3c.3g.20gb@4", got: "3g.20gb@4"},
		{name: "too many compute instances", items: "2c.3g.20gb@4 2c.3g.20gb@4", err: "has no free slices for another compute instance of 2 slices"},
		{name: "no start", items: "3g.20gb", err: "the first memory slice is missing"},
		{name: "a start that is not a number", items: "3g.20gb@x", err: "the number after @ must be the first memory slice"},
		{name: "no such start", items: "2g.10gb@6", err: "2g.10gb starts at 0, 2 or 4 on this GPU"},
		{name: "the only start", items: "4g.20gb@4", err: "4g.20gb starts at 0 on this GPU"},
		{name: "overlap", items: "3g.20gb@0 1g.5gb@3", err: "it overlaps 3g.20gb at 0"},
		{name: "two with the media extension", items: "1g.5gb+me@0 1g.5gb+me@3", err: "does not support it together with the others (at most 1 of it"},
		{name: "not a profile of this GPU", items: "4g.40gb@0", err: "it offers 1g.5gb"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := a100()
			var list []Present
			var err error
			for _, item := range strings.Fields(tc.items) {
				if list, err = ParsePresent(p, list, item); err != nil {
					break
				}
			}
			if tc.err != "" || err != nil {
				if err == nil || tc.err == "" || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			var got []string
			for _, b := range list {
				s := placedText([]Placed{placedOf(p, b.Instance)})
				if b.InUse {
					s += "!"
				}
				got = append(got, s)
			}
			if d := cmp.Diff(tc.got, strings.Join(got, " ")); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseRequest(t *testing.T) {
	for _, tc := range []struct{ item, got, err string }{
		{item: "3g.20gb", got: "3g.20gb"},
		{item: "1g.5gb*3", got: "3 × 1g.5gb"},
		{item: "1g.5gb@2", got: "1g.5gb at 2"},
		{item: "4g.40gb", got: "4g.40gb"},
		{item: "1g.5gb*0", err: "must be 1 to 64"},
		{item: "1g.5gb*many", err: "must be 1 to 64"},
		{item: "3g", err: "a profile is written like 3g.20gb"},
		{item: "1g.5gb@-1", err: "the number after @"},
	} {
		list, err := ParseRequest(tc.item)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want %q", tc.item, err, tc.err)
			}
			continue
		}
		if got := listText(list); err != nil || got != tc.got {
			t.Errorf("%s: %q, %v", tc.item, got, err)
		}
	}
}

// The names of a planned layout request it again, and then nothing changes.
func TestLayoutNamesRoundTrip(t *testing.T) {
	p := a100()
	r, err := Plan(p, nil, Requests("1c.3g.20gb", "1g.5gb+me", "2c.3g.20gb", "1c.2g.10gb", "1g.5gb"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	names := Layout(r.Layout).Names()
	if got, want := strings.Join(names, " "), "2c.3g.20gb 1c.3g.20gb 1g.5gb+me 1c.2g.10gb 1g.5gb"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var present []Present
	for _, x := range r.After() {
		for _, name := range (Layout{x}).Names() {
			if present, err = AddPresent(p, present, name, x.Placement.Start, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	again, err := Plan(p, present, Requests(names...), Options{})
	if err != nil || !again.Empty() {
		t.Errorf("%+v, %v", again, err)
	}
}

// Compute instances that are listed without placements get those of a driver: aligned, and none over another.
func TestPresentComputeInstancesAreAligned(t *testing.T) {
	for _, tc := range []struct{ list, got string }{
		{"1c.7g.40gb@0 3c.7g.40gb@0", "3@0 1@3"},
		{"1c.7g.40gb@0 3c.7g.40gb@0 3c.7g.40gb@0", "3@0 3@4 1@3"},
		{"3c.7g.40gb@0 2c.7g.40gb@0 2c.7g.40gb@0", "2@0 2@2 3@4"},
		{"1c.3g.20gb@4 2c.3g.20gb@4", "2@0 1@2"},
		{"2c.3g.20gb@4 2c.3g.20gb@4", "no free slices"},
		{"3c.7g.40gb@0 3c.7g.40gb@0 2c.7g.40gb@0", "no free slices"},
	} {
		var have []Present
		var err error
		for _, item := range strings.Fields(tc.list) {
			if have, err = ParsePresent(a100(), have, item); err != nil {
				break
			}
		}
		got := fmt.Sprint(err)
		if err == nil {
			var at []string
			for _, c := range have[0].Compute {
				at = append(at, fmt.Sprintf("%d@%d", c.Placement.Size, c.Placement.Start))
			}
			got = strings.Join(at, " ")
		}
		if !strings.Contains(got, tc.got) {
			t.Errorf("%s: %s, want %s", tc.list, got, tc.got)
		}
	}
}

// A message shows the beginning of a long name, and no more kinds than a reader can use.
func TestMessagesAreShort(t *testing.T) {
	long := "1g.5gb" + strings.Repeat("+me", 300_000)
	var many []Request
	for i := range 100_000 {
		many = append(many, Request{Name: "1g.5gb", At: &gpu.Placement{Start: uint32(i)}})
	}
	for name, want := range map[string][]Request{"a name that is known": Requests(long, long), "an unknown name": Requests("9" + long), "no name": Requests(long + "+x"), "many": many} {
		_, err := Plan(a100(), nil, want, Options{})
		if err == nil || len(err.Error()) > 2000 {
			t.Errorf("%s: %.3000v", name, err)
		}
	}
}
