package api_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

// A layout is read from names and objects, and written as it was read: a spec of names has the same text as before there were objects.
func TestLayoutItemJSON(t *testing.T) {
	const text = `["3g.20gb",{"slices":1,"gpu_memory":"\u003e=8GiB","attributes":["me"]},{"slices":2}]`
	var got []api.LayoutItem
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := []api.LayoutItem{{Profile: "3g.20gb"}, {Slices: 1, GPUMemory: ">=8GiB", Attributes: []string{"me"}}, {Slices: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if b, err := json.Marshal(got); err != nil || string(b) != text {
		t.Errorf("it is written as %s (%v)", b, err)
	}
	for _, bad := range []string{`[3]`, `[["3g.20gb"]]`, `[{"slices":"1"}]`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s is read as %+v", bad, got)
		}
	}
}

func TestLayoutItemString(t *testing.T) {
	for want, item := range map[string]api.LayoutItem{
		"3g.20gb":     {Profile: "3g.20gb"},
		"{slices: 2}": {Slices: 2},
		`{slices: 1, gpu_memory: ">=8GiB", attributes: [me, gfx]}`: {Slices: 1, GPUMemory: ">=8GiB", Attributes: []string{"me", "gfx"}},
	} {
		if got := item.String(); got != want {
			t.Errorf("%+v is %s", item, got)
		}
	}
}

// Properties are the same whatever their order and unit; a name is the same as itself only.
func TestLayoutItemSame(t *testing.T) {
	a := api.LayoutItem{Slices: 1, GPUMemory: ">=8GiB", Attributes: []string{"me", "gfx"}}
	for _, c := range []struct {
		b    api.LayoutItem
		same bool
	}{
		{api.LayoutItem{Slices: 1, GPUMemory: ">= 8192MiB", Attributes: []string{"gfx", "me"}}, true},
		{api.LayoutItem{Slices: 2, GPUMemory: ">=8GiB", Attributes: []string{"me", "gfx"}}, false},
		{api.LayoutItem{Slices: 1, Attributes: []string{"me", "gfx"}}, false},
		{api.LayoutItem{Slices: 1, GPUMemory: ">=8GiB"}, false},
		{api.LayoutItem{Profile: "1g.10gb"}, false},
	} {
		if a.Same(&c.b) != c.same || c.b.Same(&a) != c.same {
			t.Errorf("%s and %s: same is not %v", &a, &c.b, c.same)
		}
	}
}
