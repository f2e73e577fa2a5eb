package closing

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/store"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

var places = []store.Where{
	{},
	{GPU: "GPU-1"},
	{GPU: "GPU-2"},
	{GPU: "GPU-1", Instance: gpu.Placement{Start: 0, Size: 4}},
	{GPU: "GPU-1", Instance: gpu.Placement{Start: 4, Size: 4}},
	{GPU: "GPU-1", Instance: gpu.Placement{Start: 4, Size: 4}, Compute: "MIG-1"},
	{GPU: "GPU-1", Tenant: "red"},
	{GPU: "GPU-1", Instance: gpu.Placement{Start: 4, Size: 4}, Tenant: "red"},
}

// Each closer opens only what it closed: whatever the others do, a place is closed by a kind from when it closed it until it opened
// it, with what it said last. The model has one value for each kind and place.
func TestKindsAreIndependent(t *testing.T) {
	type key struct {
		kind Kind
		at   store.Where
	}
	rapid.Check(t, func(t *rapid.T) {
		s, model := &store.State{}, map[key]string{}
		kind, place := rapid.SampledFrom(Stored), rapid.SampledFrom(places)
		t.Repeat(map[string]func(*rapid.T){
			"close": func(t *rapid.T) {
				k := key{kind.Draw(t, "kind"), place.Draw(t, "place")}
				model[k] = rapid.StringMatching("[a-z]{1,3}").Draw(t, "reason")
				k.kind.Close(s, store.Closure{Where: k.at, Reason: model[k]})
			},
			"open": func(t *rapid.T) {
				k := key{kind.Draw(t, "kind"), place.Draw(t, "place")}
				_, closed := model[k]
				delete(model, k)
				if k.kind.Open(s, k.at) != closed {
					t.Fatalf("%v was closed: %v", k, closed)
				}
			},
			"open all of a GPU": func(t *rapid.T) {
				k, id := kind.Draw(t, "kind"), place.Draw(t, "place").GPU
				before := len(model)
				maps.DeleteFunc(model, func(m key, _ string) bool { return m.kind == k && m.at.GPU == id })
				if k.OpenIf(s, func(c *store.Closure) bool { return c.GPU == id }) != (len(model) < before) {
					t.Fatalf("%s on %s: %d of %d are left", k, id, len(model), before)
				}
			},
			"": func(t *rapid.T) {
				got := map[key]string{}
				for _, c := range s.Closures {
					got[key{Kind(c.Kind), c.Where}] = c.Reason
				}
				if len(got) != len(s.Closures) || !maps.Equal(got, model) {
					t.Fatalf("closed are %v, want %v", s.Closures, model)
				}
				for k, reason := range model {
					if c := k.kind.At(s, k.at); c == nil || c.Reason != reason {
						t.Fatalf("%v is %+v", k, c)
					}
				}
			},
		})
	})
}

// What closes a GPU closes its instances, for every tenant; what closes an instance or one tenant closes nothing else.
func TestFor(t *testing.T) {
	var all Closures
	for _, at := range places {
		all = append(all, store.Closure{Where: at})
	}
	first, second := gpu.Placement{Start: 0, Size: 4}, gpu.Placement{Start: 4, Size: 4}
	for _, tt := range []struct {
		name string
		at   store.Where
		want []int // of places
	}{
		{"the node", store.Where{}, []int{0}},
		{"a GPU", store.Where{GPU: "GPU-1"}, []int{0, 1}},
		{"another GPU", store.Where{GPU: "GPU-2"}, []int{0, 2}},
		{"a GPU that is open", store.Where{GPU: "GPU-3"}, []int{0}},
		{"an instance", store.Where{GPU: "GPU-1", Instance: first}, []int{0, 1, 3}},
		{"the same placement of another GPU", store.Where{GPU: "GPU-2", Instance: first}, []int{0, 2}},
		{"a compute instance", store.Where{GPU: "GPU-1", Instance: second, Compute: "MIG-1"}, []int{0, 1, 4, 5}},
		{"its neighbor", store.Where{GPU: "GPU-1", Instance: second, Compute: "MIG-2"}, []int{0, 1, 4}},
		{"a tenant", store.Where{GPU: "GPU-1", Tenant: "red"}, []int{0, 1, 6}},
		{"another tenant", store.Where{GPU: "GPU-1", Tenant: "blue"}, []int{0, 1}},
		{"a tenant in an instance", store.Where{GPU: "GPU-1", Instance: second, Tenant: "red"}, []int{0, 1, 4, 6, 7}},
	} {
		var got []int
		for _, c := range all.For(tt.at) {
			got = append(got, slices.Index(places, c.Where))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: closed by %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A closure whose end has come is none, at the moment of its end already. A clock that steps forward opens it, and closes it again when
// it steps back: nothing is forgotten meanwhile. One without an end, or that begins later than the clock says now, is one.
func TestEndsAndClockSteps(t *testing.T) {
	list := Closures{
		{Where: places[1], Reason: "without an end", Since: noon},
		{Where: places[1], Reason: "until one", Since: noon, Until: noon.Add(time.Hour)},
		{Where: places[1], Reason: "until two", Since: noon.Add(30 * time.Minute), Until: noon.Add(2 * time.Hour)},
	}
	for _, step := range []struct {
		after time.Duration
		want  []string
	}{
		{0, []string{"without an end", "until one", "until two"}},
		{time.Hour - 1, []string{"without an end", "until one", "until two"}},
		{time.Hour, []string{"without an end", "until two"}},
		{100 * 365 * 24 * time.Hour, []string{"without an end"}}, // The clock was wrong,
		{-24 * time.Hour, []string{"without an end", "until one", "until two"}},
		{90 * time.Minute, []string{"without an end", "until two"}}, // and is right again.
	} {
		var got []string
		for _, c := range list.Now(noon.Add(step.after)) {
			got = append(got, c.Reason)
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("after %v (-want +got):\n%s", step.after, diff)
		}
	}
}

// All reasons are said, and none of them names an administrator.
func TestText(t *testing.T) {
	for _, tt := range []struct {
		list Closures
		want string
	}{
		{nil, ""},
		{Closures{{Kind: string(Cordoned), By: "root", Reason: "its fan"}}, "it is cordoned"},
		{
			Closures{
				{Kind: string(Cordoned)},
				{Kind: string(Drained), By: "root"},
				{Where: store.Where{Tenant: "red"}, Kind: string(HeldBack), Faults: 3},
			},
			"it is cordoned, and its MPS is drained, and its MPS takes no lease of red after 3 fatal faults",
		},
	} {
		if got := tt.list.Text(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.list, got, tt.want)
		}
	}
}
