package cli_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// labMIG is what GPUs of the canned node can be partitioned into, shortened.
func labMIG() *api.MIGList {
	at := func(size uint32, starts ...uint32) []api.MIGPlacement {
		var out []api.MIGPlacement
		for _, s := range starts {
			out = append(out, api.MIGPlacement{Start: s, Size: size})
		}
		return out
	}
	whole := func(slices uint32) []api.MIGPlacement { return []api.MIGPlacement{{Size: slices}} }
	return &api.MIGList{SchemaVersion: 1, GPUs: []api.MIGDevice{
		{
			Index: 0, UUID: gpu0, Model: "NVIDIA A100-SXM4-40GB", Mode: "mig", Enabled: true, Width: 8,
			Profiles: []api.MIGProfile{
				{ID: 9, Name: "3g.20gb", Slices: 3, Memory: 19968 << 20, SMs: 42, Max: 2, Placements: at(4, 0, 4)},
				{ID: 14, Name: "2g.10gb", Slices: 2, Memory: 9856 << 20, SMs: 28, Max: 3, Placements: at(2, 0, 2, 4)},
				{ID: 19, Name: "1g.5gb", Slices: 1, Memory: 4864 << 20, SMs: 14, Max: 7, Placements: at(1, 0, 1, 2, 3, 4, 5, 6)},
			},
			Instances: []api.MIGInstance{
				{ProfileID: 19, Profile: "1g.5gb", Placement: api.MIGPlacement{Start: 1, Size: 1}, Compute: whole(1)},
				{
					ProfileID: 9,
					Profile:   "3g.20gb",
					Placement: api.MIGPlacement{Start: 4, Size: 4},
					Compute:   []api.MIGPlacement{{Size: 2}, {Start: 2, Size: 1}},
					InUse:     true,
				},
			},
		},
		{
			Index:     1,
			UUID:      gpu1,
			Model:     "NVIDIA A30",
			Mode:      "mig",
			Enabled:   true,
			Profiles:  []api.MIGProfile{},
			Instances: []api.MIGInstance{},
		},
		{
			Index: 2, UUID: gpu2, Model: "NVIDIA A30", Mode: "unmanaged", Width: 4, Instances: []api.MIGInstance{},
			Profiles: []api.MIGProfile{{ID: 0, Name: "4g.24gb", Slices: 4, Memory: 24000 << 20, SMs: 56, Max: 1, Placements: at(4, 0)}},
		},
	}}
}

// partedFile is a file of the MIG partition editor.
func partedFile(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("migparted/testdata/mixed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The answer that tools read has its numbers and lists even when they are nothing.
func TestThePlanInJSON(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want string // the object, by its keys in order
	}{
		"feasible": {
			[]string{"--model", "a100-40", "--have", "3g.20gb@4!,1g.5gb@0", "--want", "3g.20gb,1g.5gb,1g.5gb"},
			0,
			`{"created":1,"destroyed":0,"disturbed":0,"feasible":true,"layout":[{"placement":{"size":1,"start":0},"profile":"1g.5gb"},{"placement":{"size":1,"start":1},"profile":"1g.5gb"},{"placement":{"size":4,"start":4},"profile":"3g.20gb"}],"model":"a100-40","schema_version":1,"steps":[{"kind":"create","placement":{"size":1,"start":1},"profile":"1g.5gb"}]}`,
		},
		"infeasible": {
			[]string{"--model", "a100-40", "--want", "4g.20gb,2g.10gb*2"},
			7,
			`{"created":0,"destroyed":0,"disturbed":0,"feasible":false,"model":"a100-40","nearest":["4g.20gb","2g.10gb"],"reason":"8 of 8 memory slices would be enough, but the placements that this GPU supports do not allow this combination","schema_version":1,"steps":[]}`,
		},
		"nothing fits": {
			[]string{"--model", "a30", "--want", "7g.40gb"},
			7,
			`{"created":0,"destroyed":0,"disturbed":0,"feasible":false,"model":"a30","nearest":[],"reason":"cannot use MIG profile 7g.40gb: this GPU does not have it; it offers 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb","schema_version":1,"steps":[]}`,
		},
		"by what it must have": {
			[]string{"--model", "h200-141", "--have", `[{"profile":"1g.18gb","start":6,"in_use":true}]`, "--want", `["1g.18gb",{"slices":1,"gpu_memory":">=20GiB"},{"profile":"3g.71gb","start":0}]`},
			0,
			`{"created":2,"destroyed":0,"disturbed":0,"feasible":true,"layout":[{"placement":{"size":4,"start":0},"profile":"3g.71gb"},{"placement":{"size":2,"start":4},"profile":"1g.35gb"},{"placement":{"size":1,"start":6},"profile":"1g.18gb"}],"model":"h200-141","schema_version":1,"steps":[{"kind":"create","placement":{"size":4,"start":0},"profile":"3g.71gb"},{"kind":"create","placement":{"size":2,"start":4},"profile":"1g.35gb"}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, nil, "", append([]string{"mig", "plan", "--offline", "--json"}, c.args...)...)
			var out map[string]any
			if err := json.Unmarshal([]byte(r.out), &out); err != nil {
				t.Fatalf("%v\n%s%s", err, r.out, r.err)
			}
			got, err := json.Marshal(out)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != strings.ReplaceAll(c.want, ">", "\\u003e") || r.code != c.code || r.err != "" {
				t.Errorf("exit code %d, want %d\ngot  %s\nwant %s\n%s", r.code, c.code, got, c.want, r.err)
			}
		})
	}
}

// What follows a request is not dropped, on the command line and in a batch: it is an error with its place.
func TestWrongQuestionsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		input string
		want  string
	}{
		"an object":            {[]string{"--model", "a100-40", "--want", `{"slices":1},1g.5gb*3`}, "", `",1g.5gb*3" follows the object, at byte 13`},
		"an existing instance": {[]string{"--model", "a100-40", "--have", `{"profile":"1g.5gb","start":0} x`, "--want", "1g.5gb"}, "", `"x" follows the object, at byte 31`},
		"a list":               {[]string{"--model", "a100-40", "--want", `["1g.5gb"],1g.5gb`}, "", "after top-level value"},
		"an empty item":        {[]string{"--model", "a100-40", "--want", "1g.5gb,,1g.5gb"}, "", "item 2 of the list: it is empty; remove a comma"},
		"an unknown key":       {[]string{"--model", "a100-40", "--want", `{"slices":1,"memory":"6GiB"}`}, "", `"memory" is not one of its keys, which are profile, start, slices, gpu_memory and attributes`},
		"a line of a batch":    {[]string{"--batch", "-"}, `{"model":"a100-40","want":"1g.5gb"},{"model":"a30"}`, `follows the object, at byte 36`},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, nil, c.input, append([]string{"mig", "plan", "--offline"}, c.args...)...)
			if said := strings.ReplaceAll(r.out+r.err, `\"`, `"`); r.code != api.ExitUsage || !strings.Contains(said, c.want) {
				t.Errorf("exit code %d, want %q\n%s", r.code, c.want, said)
			}
		})
	}
}

// A list that is empty is a list, so that a tool needs no special case.
func TestTheEmptyLayoutIsAList(t *testing.T) {
	r := run(t, nil, "", "mig", "plan", "--offline", "--json", "--model", "a30", "--have", "1g.6gb@0", "--want", "")
	var out struct{ Layout []any }
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || out.Layout == nil || len(out.Layout) != 0 {
		t.Errorf("%v\n%s%s", err, r.out, r.err)
	}
}

// A program that asks line by line has the answer to a line before it writes the next one.
func TestEachLineOfABatchIsAnsweredAtOnce(t *testing.T) {
	in, write := io.Pipe()
	read, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(t.Context(), []string{"mig", "plan", "--offline", "--batch", "-"}, nil, cli.Stdio{In: in, Out: out, Err: io.Discard})
		out.Close()
	}()
	answers := bufio.NewScanner(read)
	for range 3 {
		if _, err := io.WriteString(write, `{"model":"a100-40","want":"1g.5gb"}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if !answers.Scan() || !strings.Contains(answers.Text(), `"feasible":true`) {
			t.Fatalf("the answer is %q", answers.Text())
		}
	}
	write.Close()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A GPU whose index is not known is not called GPU -1.
func TestAGPUWithoutAnIndex(t *testing.T) {
	s := labNode()
	s.GPUs[0].Index = -1
	r := routes{"GET /v1/status": s}
	for _, args := range [][]string{{"status"}, {"gpu", "list"}, {"mig", "list"}, {"gpu", "show", gpu0}} {
		if got := run(t, r, "", args...); got.code != 0 || strings.Contains(got.all, "-1 ") || !strings.Contains(got.all, "-") {
			t.Errorf("%v:\n%s", args, got.all)
		}
	}
	if got := run(t, r, "", "status", "--gpu", "-1"); got.code == 0 {
		t.Errorf("-1 is a GPU:\n%s", got.all)
	}
}
