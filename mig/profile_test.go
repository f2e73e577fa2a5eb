package mig

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
)

func TestParseProfile(t *testing.T) {
	for _, tc := range []struct {
		name string
		want ProfileName
		err  string
	}{
		{name: "3g.20gb", want: ProfileName{Slices: 3, GB: 20}},
		{name: "1g.5gb+me", want: ProfileName{Slices: 1, GB: 5, Attributes: []string{"me"}}},
		{name: "1g.24gb-me", want: ProfileName{Slices: 1, GB: 24, Attributes: []string{"-me"}}},
		{name: "2g.48gb+me.all", want: ProfileName{Slices: 2, GB: 48, Attributes: []string{"me.all"}}},
		{name: "1g.24gb+gfx+me", want: ProfileName{Slices: 1, GB: 24, Attributes: []string{"gfx", "me"}}},
		{name: "1c.3g.20gb", want: ProfileName{Compute: 1, Slices: 3, GB: 20}},
		{name: "1g.0gb+me", want: ProfileName{Slices: 1, Attributes: []string{"me"}}}, // of an integrated GPU
		{name: "1g.00gb", err: "the memory is not a number"},
		{name: "", err: "it does not have the parts"},
		{name: "3g", err: "it does not have the parts"},
		{name: "3.20gb", err: "the slices are not a number"},
		{name: "03g.20gb", err: "the slices are not a number"},
		{name: "3g.20", err: "the memory is not a number"},
		{name: "3g.99999999999gb", err: "the memory is not a number"},
		{name: "4c.3g.20gb", err: "cannot have more slices"},
		{name: "xc.3g.20gb", err: "the compute part"},
		{name: "1g.5gb+", err: `unknown attribute ""`},
		{name: "1g.5gb+fast", err: `unknown attribute "fast"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseProfile(tc.name)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
			if again, err := ParseProfile(got.String()); err != nil || !cmp.Equal(again, got) {
				t.Errorf("written as %s, which reads %+v, %v", got, again, err)
			}
		})
	}
}

func TestMatch(t *testing.T) {
	gb200 := gpu.Profiles{Width: 8, GI: []gpu.Profile{profile(19, "1g.23gb", 1, 22528, 7, 1, 0), profile(9, "3g.93gb", 3, 95000, 2, 4, 0)}}
	for _, tc := range []struct {
		name string
		p    gpu.Profiles
		want Request
		got  string // names
	}{
		{"exact", a100(), Request{Name: "1g.10gb"}, "1g.10gb"},
		{"attributes are part of the name", a100(), Request{Name: "1g.5gb+me"}, "1g.5gb+me"},
		{"another board's label", gb200, Request{Name: "1g.24gb"}, "1g.23gb"},
		{"another board's label, larger", gb200, Request{Name: "3g.95gb"}, "3g.93gb"},
		{"not just any memory", a100(), Request{Name: "1g.6gb"}, ""},
		{"not without the attribute", a30(), Request{Name: "4g.24gb+me"}, ""},
		{"by slices, smallest memory first", a100(), Request{Slices: 1}, "1g.5gb 1g.10gb"},
		{"by slices and memory", a100(), Request{Slices: 1, Memory: 5 << 30}, "1g.10gb"},
		{"by slices and attributes", rtx(), Request{Slices: 2, Attributes: []string{"-me"}}, "2g.48gb-me"},
		{"too much memory", a100(), Request{Slices: 3, Memory: 38 << 30}, ""},
		{"nothing requested", a100(), Request{}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, err := Match(tc.p, tc.want)
			var names []string
			for _, q := range list {
				names = append(names, q.Name)
			}
			if got := strings.Join(names, " "); got != tc.got {
				t.Errorf("got %q, want %q", got, tc.got)
			}
			if e, ok := errors.AsType[*NoProfile](err); ok != (tc.got == "") || ok && len(e.Offers) != len(tc.p.GI) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestSimilar(t *testing.T) {
	for _, tc := range []struct{ want, got string }{
		{"4g.40gb", "4g.20gb"}, {"1g.12gb", "1g.10gb"}, {"1g.6gb+me", "1g.5gb+me"}, {"1c.3g.40gb", "1c.3g.20gb"}, {"1g.24gb+gfx", ""}, {"5g.20gb", ""}, {"word", ""},
	} {
		if got, ok := Similar(a100(), Request{Name: tc.want}); got.Name != tc.got && ok || ok != (tc.got != "") {
			t.Errorf("%s: %v %v, want %q", tc.want, got, ok, tc.got)
		}
	}
}

func TestPlaceable(t *testing.T) {
	p := a100()
	var got []string
	for _, r := range Placeable(p, []gpu.Instance{instance(p, "3g.20gb", 4), instance(p, "1g.5gb+me", 0)}) {
		for _, f := range r.Free {
			got = append(got, Placed{Name: r.Profile.Name, Placement: f}.String())
		}
	}
	want := []string{"2g.10gb at 2", "1g.5gb at 1", "1g.5gb at 2", "1g.5gb at 3", "1g.10gb at 2"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
