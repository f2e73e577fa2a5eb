package board_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/mig"
)

// published are the data of listings and of the vendor's guide, in the columns of `nvidia-smi mig -lgip` and `-lgipp`:
// name, id, instances, memory in GiB, SMs, decoders, copy engines, JPEG, OFA, placements. A star means that no known
// listing has the value. For a100-40 the values in MiB of the guide are used; they are of an older driver than the
// listings with 9.75, 19.62 and 39.50. The test compares the files of testdata/gpus with this table to find typing
// errors.
var published = map[string]string{
	"a30": `
1g.6gb         14 4  5.81  14 * 1 0 0 {0,1,2,3}:1
1g.6gb+me      21 1  5.81  14 1 1 1 1 {0,1,2,3}:1
2g.12gb         5 2 11.69  28 2 2 0 0 {0,2}:2
2g.12gb+me      6 1 11.69  28 2 2 1 1 {0,2}:2
4g.24gb         0 1 23.44  56 4 4 1 1 {0}:4`,
	"a100-40": `
1g.5gb         19 7  4.75  14 0 1 0 0 {0,1,2,3,4,5,6}:1
1g.5gb+me      20 1  4.75  14 1 1 1 1 {0,1,2,3,4,5,6}:1
1g.10gb        15 4  9.62  14 1 1 0 0 {0,2,4,6}:2
2g.10gb        14 3  9.62  28 1 2 0 0 {0,2,4}:2
3g.20gb         9 2 19.50  42 2 3 0 0 {0,4}:4
4g.20gb         5 1 19.50  56 2 4 0 0 {0}:4
7g.40gb         0 1 39.25  98 5 7 1 1 {0}:8`,
	"a100-80": `
1g.10gb        19 7  9.50  14 0 1 0 0 {0,1,2,3,4,5,6}:1
1g.10gb+me     20 1  9.50  14 1 1 1 1 {0,1,2,3,4,5,6}:1
1g.20gb        15 4 19.50  14 1 1 0 0 {0,2,4,6}:2
2g.20gb        14 3 19.50  28 1 2 0 0 {0,2,4}:2
3g.40gb         9 2 39.50  42 2 3 0 0 {0,4}:4
4g.40gb         5 1 39.50  56 2 4 0 0 {0}:4
7g.80gb         0 1 79.25  98 5 7 1 1 {0}:8`,
	"h100-80": `
1g.10gb        19 7  9.75  16 1 1 1 0 {0,1,2,3,4,5,6}:1
1g.10gb+me     20 1  9.75  16 1 1 1 1 {0,1,2,3,4,5,6}:1
1g.20gb        15 4 19.62  26 1 1 1 0 {0,2,4,6}:2
2g.20gb        14 3 19.62  32 2 2 2 0 {0,2,4}:2
3g.40gb         9 2 39.50  60 3 3 3 0 {0,4}:4
4g.40gb         5 1 39.50  64 4 4 4 0 {0}:4
7g.80gb         0 1 79.25 132 7 8 7 1 {0}:8`,
	"h200-141": `
1g.18gb        19 7 16.00  16 1 1 1 0 *
1g.18gb+me     20 1 16.00  16 1 1 1 1 *
1g.35gb        15 4 32.25  26 1 1 1 0 *
2g.35gb        14 3 32.50  32 2 2 2 0 *
3g.71gb         9 2 69.50  60 3 3 3 0 *
4g.71gb         5 1 69.50  64 4 4 4 0 *
7g.141gb        0 1 140.00 132 7 8 7 1 *`,
	"h100-94": `
1g.12gb        19 7 10.75  16 1 1 1 0 {0,1,2,3,4,5,6}:1
1g.12gb+me     20 1 10.75  16 1 1 1 1 {0,1,2,3,4,5,6}:1
1g.24gb        15 4 21.62  26 1 1 1 0 {0,2,4,6}:2
2g.24gb        14 3 21.62  32 2 2 2 0 {0,2,4}:2
3g.47gb         9 2 46.38  60 3 3 3 0 {0,4}:4
4g.47gb         5 1 46.38  64 4 4 4 0 {0}:4
7g.94gb         0 1 93.12 132 7 8 7 1 {0}:8`,
	"gh200-96": `
1g.12gb        19 7 11.00  16 1 1 1 0 *
1g.12gb+me     20 1 11.00  16 1 1 1 1 *
1g.24gb        15 4 23.00  26 1 1 1 0 *
2g.24gb        14 3 23.00  32 2 2 2 0 *
3g.48gb         9 2 46.50  60 3 3 3 0 *
4g.48gb         5 1 46.50  64 4 4 4 0 *
7g.96gb         0 1 93.00 132 7 8 7 1 *`,
	"gh200-144": `
1g.18gb        19 7 17.50  16 1 1 1 0 *
1g.18gb+me     20 1 17.50  16 1 1 1 1 *
1g.36gb        15 4 35.25  26 1 1 1 0 *
2g.36gb        14 3 35.25  32 2 2 2 0 *
3g.72gb         9 2     *   * * * * * *
4g.72gb         5 1     *   * * * * * *
7g.144gb        0 1     *   * * * * * *`,
	"b200": `
1g.23gb        19 7 22.00  18 1 2 1 0 *
1g.23gb+me     20 1 22.00  18 1 2 1 1 *
1g.45gb        15 4 44.25  30 1 2 1 0 *
2g.45gb        14 3 44.25  36 2 4 2 0 *
3g.90gb         9 2     *   * * 6 * 0 *
4g.90gb         5 1     *   * * 8 * 0 *
7g.180gb        0 1     *   * * 16 * 1 *`,
	"gb200": `
1g.23gb        19 7 22.00  18 1 2 1 0 *
1g.23gb+me     20 1 22.00  18 1 2 1 1 *
1g.47gb        15 4 45.50  32 1 2 1 0 *
2g.47gb        14 3 45.50  38 2 4 2 0 *
3g.93gb         9 2     *   * * * * * *
4g.93gb         5 1     *   * * * * * *
7g.186gb        0 1     *   * * * * * *`,
	"rtx-pro-6000": `
1g.24gb        14 4 23.62  46 1 1 1 0 {0,3,6,9}:3
1g.24gb+me     21 1 23.62  46 1 1 1 1 {0,3,6,9}:3
1g.24gb+gfx    47 4 23.62  46 1 1 1 0 {0,3,6,9}:3
1g.24gb+me.all 65 1 23.62  46 4 1 4 1 {0,3,6,9}:3
1g.24gb-me     67 4 23.62  46 0 1 0 0 {0,3,6,9}:3
2g.48gb         5 2 47.38  94 2 2 2 0 {0,6}:6
2g.48gb+gfx    35 2 47.38  94 2 2 2 0 {0,6}:6
2g.48gb+me.all 64 1 47.38  94 4 2 4 1 {0,6}:6
2g.48gb-me     66 2 47.38  94 0 2 0 0 {0,6}:6
4g.96gb         0 1 95.00 188 4 4 4 1 {0}:12
4g.96gb+gfx    32 1 95.00 188 4 4 4 1 {0}:12`,
}

// counts are the numbers of layouts of a board, and of multisets of profiles in them.
var counts = map[string][2]int{
	"a30": {76, 20}, "a100-40": {2319, 128}, "a100-80": {2319, 128}, "h100-80": {2319, 128}, "h200-141": {2319, 128}, "b200": {2319, 128},
	"h100-94": {2319, 128}, "gh200-96": {2319, 128}, "gh200-144": {2319, 128}, "gb200": {2319, 128}, "rtx-pro-6000": {717, 115},
}

// TestEveryBoard runs the same suite over every board.
func TestEveryBoard(t *testing.T) {
	all, err := board.All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(published) {
		t.Errorf("%d boards, but published data of %d", len(all), len(published))
	}
	for _, b := range all {
		t.Run(b.Short, func(t *testing.T) {
			t.Run("is as published", func(t *testing.T) { isAsPublished(t, b) })
			t.Run("is consistent", func(t *testing.T) { isConsistent(t, b) })
			t.Run("is what its virtual GPU reports", func(t *testing.T) {
				v := virtual(t, b)
				got, err := v.driver.Profiles(t.Context(), v.id)
				if d := cmp.Diff(b.GPUProfiles(), got); err != nil || d != "" {
					t.Errorf("%v (-board +GPU):\n%s", err, d)
				}
			})
			t.Run("accepts every layout that the rules allow and no other", func(t *testing.T) { acceptsLegalLayouts(t, b) })
			t.Run("accepts every plan without a failing call", func(t *testing.T) { acceptsEveryPlan(t, b) })
		})
	}
}

func isAsPublished(t *testing.T, b *board.Board) {
	var got, want []string
	for line := range strings.Lines(strings.TrimSpace(published[b.Short])) {
		want = append(want, strings.Join(strings.Fields(line), " "))
	}
	for i, p := range b.Profiles {
		starts := strings.ReplaceAll(strings.Trim(fmt.Sprint(p.Starts), "[]"), " ", ",")
		line := fmt.Sprintf(
			"%s %d %d %.2f %d %d %d %d %d {%s}:%d", p.Name, p.ID, p.Max, float64(p.MemoryMiB)/1024, p.SMs, p.Decoders, p.Copy, p.JPEG,
			p.OFA, starts, p.Size,
		)
		if i < len(want) {
			line = maskUnpublished(line, want[i])
		}
		got = append(got, line)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-published +file):\n%s", d)
	}
	if strings.Contains(published[b.Short], "*") && len(b.Unverified) == 0 {
		t.Error("the file does not list its unverified facts")
	}
}

// maskUnpublished replaces the fields that no listing has with a star.
func maskUnpublished(line, want string) string {
	a, w := strings.Fields(line), strings.Fields(want)
	for i := range a {
		if i < len(w) && w[i] == "*" {
			a[i] = "*"
		}
	}
	return strings.Join(a, " ")
}

func isConsistent(t *testing.T, b *board.Board) {
	if found, err := board.Find(strings.ToUpper(b.Short)); err != nil || found.File != b.File {
		t.Errorf("its short name finds %v, %v", found, err)
	}
	if found, err := board.Find(b.Name); err != nil || found.File != b.File {
		t.Errorf("the driver's name finds %v, %v", found, err)
	}
	p := b.GPUProfiles()
	names := map[string]bool{}
	for _, q := range p.GI {
		n, err := mig.ParseProfile(q.Name)
		if err != nil {
			t.Fatal(err)
		}
		if names[q.Name] {
			t.Errorf("two profiles are called %s", q.Name)
		}
		names[q.Name] = true
		if n.Slices != q.Slices || !slices.Equal(n.Attributes, q.Attributes) {
			t.Errorf("%s has %d slices and attributes %v", q.Name, q.Slices, q.Attributes)
		}
		// The name contains a rounded share of the board's memory; the memory of an instance is slightly less, and never
		// more.
		if have := float64(q.Memory) / (1 << 30); have > float64(n.GB) || have < 0.85*float64(n.GB) {
			t.Errorf("%s has %.2f GiB", q.Name, have)
		}
		if total := uint64(q.Max) * q.Memory >> 20; total > b.Memory.Total {
			t.Errorf("%d × %s have %d MiB, the board %d", q.Max, q.Name, total, b.Memory.Total)
		}
		if q.SMs*q.Max > b.SMs {
			t.Errorf("%d × %s have %d SMs, the board %d", q.Max, q.Name, q.SMs*q.Max, b.SMs)
		}
		for _, r := range p.GI {
			if r.Slices > q.Slices && r.Memory < q.Memory {
				t.Errorf("%s has more memory than %s", q.Name, r.Name)
			}
		}
	}
	most := slices.MaxFunc(p.GI, func(a, b gpu.Profile) int { return int(a.Placements[0].Size) - int(b.Placements[0].Size) })
	if most.Placements[0] != (gpu.Placement{Size: p.Width}) {
		t.Errorf("the largest profile has the placement %v in a grid of %d", most.Placements[0], p.Width)
	}
}

// node is one virtual GPU of a board, with MIG on.
type node struct {
	driver *gpusim.Driver
	id     gpu.UUID
}

func virtual(t *testing.T, b *board.Board) node {
	t.Helper()
	m, err := nodefile.Model(b.Short)
	if err != nil {
		t.Fatal(err)
	}
	n, err := gpusim.New(gpusim.Config{
		DriverVersion: "580.95.05", CUDAVersion: 13000, GPUs: []gpusim.GPUConfig{{Model: m, MIG: true}},
	}, engine.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	d := n.Driver(1)
	info, err := d.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return node{d, info.GPUs[0].UUID}
}

func (v node) instances(t *testing.T) []gpu.Instance {
	t.Helper()
	s, err := v.driver.Snapshot(t.Context(), v.id)
	if err != nil {
		t.Fatal(err)
	}
	return s.Instances
}

func (v node) clear(t *testing.T) {
	t.Helper()
	for _, in := range v.instances(t) {
		if err := v.driver.DestroyInstance(t.Context(), v.id, in.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// placedProfile is one instance of a layout: the index of its profile and its placement.
type placedProfile struct {
	profile int
	at      gpu.Placement
}

// layouts lists every legal layout by the documented rules, without the planner and without the simulator.
func layouts(p gpu.Profiles) [][]placedProfile {
	var all []placedProfile
	for i, q := range p.GI {
		for _, at := range q.Placements {
			all = append(all, placedProfile{i, at})
		}
	}
	var out [][]placedProfile
	var grow func(from int, have []placedProfile)
	grow = func(from int, have []placedProfile) {
		out = append(out, slices.Clone(have))
		for i := from; i < len(all); i++ {
			if next := append(slices.Clip(have), all[i]); legal(p, next) {
				grow(i+1, next)
			}
		}
	}
	grow(0, nil)
	return out
}

func legal(p gpu.Profiles, layout []placedProfile) bool {
	of, me, all, some := map[int]uint32{}, 0, 0, 0
	for i, s := range layout {
		for _, o := range layout[:i] {
			if o.at.Overlaps(s.at) {
				return false
			}
		}
		q := &p.GI[s.profile]
		if of[s.profile]++; of[s.profile] > q.Max {
			return false
		}
		has := func(a string) bool { return slices.Contains(q.Attributes, a) }
		if has("me") {
			me++
		}
		if has("me.all") {
			all++
		}
		if !has("-me") {
			some++
		}
	}
	return me <= 1 && (all == 0 || all == 1 && some == 1)
}

// acceptsLegalLayouts creates the layouts on the virtual GPU in random order, and tries to add every other instance. With
// thousands of layouts it tests a sample of them.
func acceptsLegalLayouts(t *testing.T, b *board.Board) {
	p, v := b.GPUProfiles(), virtual(t, b)
	all := layouts(p)
	if want := counts[b.Short]; want[0] != 0 && len(all) != want[0] {
		t.Errorf("%d layouts, want %d", len(all), want[0])
	}
	r := rand.New(rand.NewPCG(1, 2))
	ctx := t.Context()
	for i := 0; i < len(all); i += 1 + len(all)/300 {
		layout := slices.Clone(all[i])
		r.Shuffle(len(layout), func(i, j int) { layout[i], layout[j] = layout[j], layout[i] })
		for _, s := range layout {
			if _, err := v.driver.CreateInstance(ctx, v.id, gpu.NewInstance{ProfileID: p.GI[s.profile].ID, Placement: s.at}); err != nil {
				t.Fatalf("%v of %v is refused: %v", s, layout, err)
			}
		}
		for q := range p.GI {
			for _, at := range p.GI[q].Placements {
				may := legal(p, append(slices.Clip(layout), placedProfile{q, at}))
				in, err := v.driver.CreateInstance(ctx, v.id, gpu.NewInstance{ProfileID: p.GI[q].ID, Placement: at})
				if may != (err == nil) {
					t.Fatalf("%s at %v next to %v: %v, legal by the rules: %v", p.GI[q].Name, at, layout, err, may)
				}
				if err == nil {
					if err := v.driver.DestroyInstance(ctx, v.id, in.ID); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		v.clear(t)
	}
}

// acceptsEveryPlan plans from one multiset of profiles to the next one, carries out each plan, and reads the layout back.
func acceptsEveryPlan(t *testing.T, b *board.Board) {
	p, v := b.GPUProfiles(), virtual(t, b)
	seen := map[string]bool{}
	var targets [][]mig.Request
	for _, layout := range layouts(p) {
		var names []string
		for _, s := range layout {
			names = append(names, p.GI[s.profile].Name)
		}
		slices.Sort(names)
		if key := strings.Join(names, " "); !seen[key] {
			seen[key] = true
			targets = append(targets, mig.Requests(names...))
		}
	}
	if want := counts[b.Short]; want[1] != 0 && len(targets) != want[1] {
		t.Errorf("%d multisets, want %d", len(targets), want[1])
	}
	r := rand.New(rand.NewPCG(3, 4))
	r.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	h := &mig.Handler{Driver: v.driver}
	for _, want := range targets {
		var present []mig.Present
		for _, in := range v.instances(t) {
			present = append(present, mig.Present{Instance: in})
		}
		plan, err := mig.Plan(p, present, want, mig.Options{})
		if err != nil {
			t.Fatalf("%v from %v: %v", want, mig.Record(p, v.instances(t)), err)
		}
		for _, s := range plan.Steps(v.id) {
			if err := h.Do(context.Background(), s); err != nil {
				t.Fatalf("%s on the way to %v: %v", s.Text, want, err)
			}
		}
		if got := mig.Record(p, v.instances(t)); !mig.SameLayout(got, plan.Layout) {
			t.Fatalf("%v became %v, want the planned %v", want, got, plan.Layout)
		}
	}
}

func TestFindByPrefix(t *testing.T) {
	if b, err := board.Find("H200"); err != nil || b.Short != "h200-141" {
		t.Errorf("%v, %v", b, err)
	}
	for _, name := range []string{"a100", ""} {
		if b, err := board.Find(name); err == nil {
			t.Errorf("%q finds %s", name, b.Short)
		}
	}
}

func TestUnknownBoardListsKnownOnes(t *testing.T) {
	_, err := board.Find("a101")
	if err == nil || !strings.Contains(err.Error(), `cannot find the board "a101": known are a100-40, a100-80, a30,`) {
		t.Error(err)
	}
}
