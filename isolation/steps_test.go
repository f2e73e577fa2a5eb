package isolation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/step"
)

var everything = cgroup.Info{Adapter: "fake", Slices: true, Freeze: true, Devices: true, Limits: cgroup.LimitNames()}

// memorySlices is a fake of Slices. It reads back what an adapter with this Info would.
type memorySlices struct {
	info   cgroup.Info
	slices map[cgroup.SliceName]cgroup.Slice
	err    error
}

func (s *memorySlices) Info() cgroup.Info { return s.info }

func (s *memorySlices) SetSlice(_ context.Context, want cgroup.Slice) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	if s.slices == nil {
		s.slices = map[cgroup.SliceName]cgroup.Slice{}
	}
	if parent := (cgroup.SliceName{Tenant: want.Name.Tenant}); want.Name.Grant != "" {
		if _, ok := s.slices[parent]; !ok {
			s.slices[parent] = s.info.Expect(cgroup.Slice{Name: parent})
		}
	}
	s.slices[want.Name] = s.info.Expect(want)
	return true, nil
}

func (s *memorySlices) Slices(context.Context) ([]cgroup.SliceState, error) {
	var out []cgroup.SliceState
	for _, sl := range s.slices {
		out = append(out, cgroup.SliceState{Name: sl.Name, Limits: sl.Limits, Closed: sl.Closed, Devices: sl.Devices})
	}
	slices.SortFunc(out, func(a, b cgroup.SliceState) int { return compareNames(a.Name, b.Name) })
	return out, s.err
}

func (s *memorySlices) Slice(_ context.Context, name cgroup.SliceName) (cgroup.SliceState, error) {
	sl, ok := s.slices[name]
	if s.err != nil {
		return cgroup.SliceState{}, s.err
	}
	if !ok {
		return cgroup.SliceState{}, cgroup.ErrNotFound
	}
	return cgroup.SliceState{Name: sl.Name, Limits: sl.Limits, Closed: sl.Closed, Devices: sl.Devices}, nil
}

func (s *memorySlices) RemoveSlice(_ context.Context, name cgroup.SliceName) error {
	for n := range s.slices {
		if name.Grant == "" && n.Grant != "" && n.Tenant == name.Tenant {
			return fmt.Errorf("%s has a child", name)
		}
	}
	delete(s.slices, name)
	return s.err
}

func dev(minor uint32, access string) cgroup.DeviceRule {
	return cgroup.DeviceRule{Type: 'c', Major: 195, Minor: minor, Access: access, Name: fmt.Sprintf("/dev/nvidia%d", minor)}
}

func texts(steps []step.Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, fmt.Sprintf("%s: %s (%s)", s.Phase, s.Text, s.Disruption))
	}
	return out
}

func state(s cgroup.Slice) cgroup.SliceState {
	return cgroup.SliceState{Name: s.Name, Limits: s.Limits, Closed: s.Closed, Devices: s.Devices}
}

func TestPlan(t *testing.T) {
	u := func(n uint64) *uint64 { return &n }
	f := func(n float64) *float64 { return &n }
	name := cgroup.SliceName{Tenant: "vision"}
	grant := cgroup.SliceName{Tenant: "vision", Grant: "train"}
	base := cgroup.Slice{
		Name:    name,
		Closed:  true,
		Devices: []cgroup.DeviceRule{dev(0, "rw"), dev(1, "rw")},
		Limits:  cgroup.Limits{MemoryMax: u(8 << 30), CPUQuota: f(400)},
	}
	changed := func(f func(*cgroup.Slice)) cgroup.Slice { s := base; f(&s); return s }
	tests := []struct {
		name     string
		desired  []cgroup.Slice
		observed []cgroup.SliceState
		info     cgroup.Info
		use      map[cgroup.SliceName]Use
		want     []string
	}{
		{name: "the same", desired: []cgroup.Slice{base}, observed: []cgroup.SliceState{state(base)}, info: everything},
		{
			name: "equivalent slices", info: everything,
			desired: []cgroup.Slice{changed(func(s *cgroup.Slice) {
				s.Devices = []cgroup.DeviceRule{dev(1, "wr"), dev(0, "r"), dev(0, "w")}
				s.Limits.CPUWeight = u(100)
				s.Limits.MemoryMax = u(8<<30 + 1)
			})},
			observed: []cgroup.SliceState{state(base)},
		},
		{
			name: "limits that cannot be enforced are ignored", info: cgroup.Info{Adapter: "processes"}, desired: []cgroup.Slice{base},
			observed: []cgroup.SliceState{{Name: name}},
		},
		{
			name:    "the tenant first",
			desired: []cgroup.Slice{{Name: grant, Closed: true}, base},
			info:    everything,
			want: []string{
				"grant: create the cgroup slice of vision: cpu.quota 400%, memory.max 8 GiB, 2 devices (none)",
				"grant: create the cgroup slice of vision/train: 0 devices (none)",
			},
		},
		{
			name: "lower", info: everything, observed: []cgroup.SliceState{state(base)},
			desired: []cgroup.Slice{changed(func(s *cgroup.Slice) { s.Limits.MemoryMax = u(4 << 30) })},
			want:    []string{"revoke: restrict the cgroup slice of vision: memory.max 8 GiB → 4 GiB (none)"},
		},
		{
			name: "below what is in use", info: everything, observed: []cgroup.SliceState{state(base)},
			use:     map[cgroup.SliceName]Use{name: {Leases: []string{"l1"}, Memory: 5 << 30}},
			desired: []cgroup.Slice{changed(func(s *cgroup.Slice) { s.Limits.MemoryMax = u(4 << 30) })},
			want:    []string{"revoke: restrict the cgroup slice of vision: memory.max 8 GiB → 4 GiB (running)"},
		},
		{
			name: "not below what is in use", info: everything, observed: []cgroup.SliceState{state(base)},
			use:     map[cgroup.SliceName]Use{name: {Leases: []string{"l1"}, Memory: 3 << 30, Devices: []cgroup.DeviceRule{dev(0, "rw")}}},
			desired: []cgroup.Slice{changed(func(s *cgroup.Slice) { s.Limits.MemoryMax = u(4 << 30) })},
			want:    []string{"revoke: restrict the cgroup slice of vision: memory.max 8 GiB → 4 GiB (none)"},
		},
		{
			name: "a device in use is revoked", info: everything, observed: []cgroup.SliceState{state(base)},
			use:     map[cgroup.SliceName]Use{name: {Leases: []string{"l1"}, Devices: []cgroup.DeviceRule{dev(0, "rw")}}},
			desired: []cgroup.Slice{changed(func(s *cgroup.Slice) { s.Devices = []cgroup.DeviceRule{dev(1, "rw")} })},
			want:    []string{"revoke: restrict the cgroup slice of vision: -/dev/nvidia0 (running)"},
		},
		{
			name: "raise", info: everything, observed: []cgroup.SliceState{state(base)},
			desired: []cgroup.Slice{changed(func(s *cgroup.Slice) { s.Limits.MemoryMax = nil })},
			want:    []string{"grant: change the cgroup slice of vision: memory.max 8 GiB → none (none)"},
		},
		{
			name: "both ways", info: everything, observed: []cgroup.SliceState{state(base)},
			desired: []cgroup.Slice{changed(func(s *cgroup.Slice) {
				s.Devices = []cgroup.DeviceRule{dev(1, "rw"), dev(2, "rw")}
				s.Limits.MemoryMax, s.Limits.CPUQuota = u(4<<30), f(800)
			})},
			want: []string{
				"revoke: restrict the cgroup slice of vision: memory.max 8 GiB → 4 GiB, -/dev/nvidia0 (none)",
				"grant: change the cgroup slice of vision: cpu.quota 400% → 800%, +/dev/nvidia2 (none)",
			},
		},
		{
			name: "an open slice is closed first", info: everything,
			observed: []cgroup.SliceState{{Name: name, Limits: base.Limits}}, desired: []cgroup.Slice{base},
			want: []string{"revoke: restrict the cgroup slice of vision: devices closed, +/dev/nvidia0, +/dev/nvidia1 (none)"},
		},
		{
			name: "removed, the grants first",
			info: everything,
			observed: []cgroup.SliceState{
				{},
				state(base),
				{Name: grant, Closed: true},
			},
			use:  map[cgroup.SliceName]Use{grant: {Leases: []string{"l1"}}},
			want: []string{"revoke: remove the cgroup slice of vision/train (running)", "revoke: remove the cgroup slice of vision (idle)"},
		},
		{
			name: "all revoking first", info: everything, observed: []cgroup.SliceState{state(base), {Name: grant, Closed: true}},
			desired: []cgroup.Slice{{Name: cgroup.SliceName{Tenant: "a"}}, changed(func(s *cgroup.Slice) { s.Devices = nil })},
			want: []string{
				"revoke: restrict the cgroup slice of vision: -/dev/nvidia0, -/dev/nvidia1 (none)",
				"revoke: remove the cgroup slice of vision/train (idle)",
				"grant: create the cgroup slice of a: no limit (none)",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, texts(PlanInUse(tt.desired, tt.observed, tt.info, tt.use))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func genLimits() *rapid.Generator[cgroup.Limits] {
	return rapid.Custom(func(t *rapid.T) cgroup.Limits {
		u := func(label string, least uint64) *uint64 {
			if rapid.Bool().Draw(t, label+" set") {
				n := rapid.Uint64Range(least, least+3).Draw(t, label) * 4096
				return &n
			}
			return nil
		}
		l := cgroup.Limits{MemoryMax: u("max", 0), MemoryHigh: u("high", 0), SwapMax: u("swap", 0), TasksMax: u("tasks", 1)}
		if rapid.Bool().Draw(t, "quota set") {
			q := float64(rapid.IntRange(1, 4).Draw(t, "quota") * 100)
			l.CPUQuota = &q
		}
		if rapid.Bool().Draw(t, "weight set") {
			w := rapid.Uint64Range(99, 101).Draw(t, "weight")
			l.CPUWeight, l.IOWeight = &w, &w
		}
		l.CPUs = rapid.SampledFrom([]string{"", "0-3", "2-5", "6-7"}).Draw(t, "cpus")
		return l
	})
}

func genSlice(name cgroup.SliceName) *rapid.Generator[cgroup.Slice] {
	return rapid.Custom(func(t *rapid.T) cgroup.Slice {
		s := cgroup.Slice{Name: name, Limits: genLimits().Draw(t, "limits"), Closed: rapid.Bool().Draw(t, "closed")}
		for i := range uint32(4) {
			if a := rapid.SampledFrom([]string{"", "r", "rw", "rwm"}).Draw(t, "access"); a != "" && s.Closed {
				s.Devices = append(s.Devices, dev(i, a))
			}
		}
		return s
	})
}

func genInfo() *rapid.Generator[cgroup.Info] {
	return rapid.Custom(func(t *rapid.T) cgroup.Info {
		i := cgroup.Info{Adapter: "fake", Slices: true, Devices: rapid.Bool().Draw(t, "devices")}
		for _, n := range cgroup.LimitNames() {
			if rapid.Bool().Draw(t, n) {
				i.Limits = append(i.Limits, n)
			}
		}
		return i
	})
}

var names = []cgroup.SliceName{
	{Tenant: "a"},
	{Tenant: "a", Grant: "x"},
	{Tenant: "a", Grant: "y"},
	{Tenant: "b"},
	{Tenant: "b", Grant: "x"},
}

// wider returns something that a allows and b does not.
func wider(a, b cgroup.Slice) string {
	above := func(a, b *uint64) bool { return b != nil && (a == nil || *a > *b) }
	switch {
	case !a.Closed && b.Closed:
		return "devices open"
	case above(a.Limits.MemoryMax, b.Limits.MemoryMax),
		above(a.Limits.MemoryHigh, b.Limits.MemoryHigh),
		above(a.Limits.SwapMax, b.Limits.SwapMax):
		return "memory"
	case above(a.Limits.TasksMax, b.Limits.TasksMax):
		return "tasks"
	case b.Limits.CPUQuota != nil && (a.Limits.CPUQuota == nil || *a.Limits.CPUQuota > *b.Limits.CPUQuota):
		return "quota"
	}
	if a.Closed && b.Closed {
		for _, r := range a.Devices {
			i := slices.IndexFunc(b.Devices, func(o cgroup.DeviceRule) bool { return o.Minor == r.Minor })
			if i < 0 || strings.Trim(r.Access, b.Devices[i].Access) != "" {
				return r.Name
			}
		}
	}
	return ""
}

// A plan leads to the desired slices, and then a second plan is empty. A step that revokes access allows nothing that
// either side does not allow. Undone in reverse, the steps lead back.
func TestPlanModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		memorySlices := &memorySlices{info: genInfo().Draw(t, "info")}
		h := &Handler{Slices: memorySlices}
		var desired []cgroup.Slice
		for _, n := range names {
			if rapid.Bool().Draw(t, "is") {
				if _, err := memorySlices.SetSlice(t.Context(), genSlice(n).Draw(t, "is")); err != nil {
					t.Fatal(err)
				}
			}
			if rapid.Bool().Draw(t, "desired") || n.Grant == "" {
				desired = append(desired, genSlice(n).Draw(t, "desired"))
			}
		}
		before, _ := memorySlices.Slices(t.Context())
		steps := Plan(desired, before, memorySlices.info)
		granting := false
		var states [][]cgroup.SliceState // before each step
		for _, s := range steps {
			now, _ := memorySlices.Slices(t.Context())
			states = append(states, now)
			b, err := json.Marshal(s) // steps are stored over a restart
			if err != nil {
				t.Fatal(err)
			}
			var again step.Step
			if err := json.Unmarshal(b, &again); err != nil {
				t.Fatal(err)
			}
			if s.Phase == step.GrantAccess {
				granting = true
			} else if granting {
				t.Fatalf("%s comes after a step that grants access", s.Text)
			}
			if s.Phase == step.RevokeAccess && s.Kind == KindSet {
				var low cgroup.Slice
				if err := json.Unmarshal(s.Args, &low); err != nil {
					t.Fatal(err)
				}
				is := asSlice(before[slices.IndexFunc(before, func(o cgroup.SliceState) bool { return o.Name == low.Name })])
				want := desired[slices.IndexFunc(desired, func(o cgroup.Slice) bool { return o.Name == low.Name })]
				if w := wider(memorySlices.info.Expect(low), is); w != "" {
					t.Fatalf("a revoking step allows more than before: %s", w)
				}
				if w := wider(memorySlices.info.Expect(low), memorySlices.info.Expect(want)); w != "" {
					t.Fatalf("a revoking step allows more than desired: %s", w)
				}
			}
			if done, err := h.Applied(t.Context(), again); done || err != nil {
				t.Fatalf("%s: applied before it was done (%v)", s.Text, err)
			}
			if strings.HasSuffix(s.Text, ": ") {
				t.Fatalf("%q does not say what changes", s.Text)
			}
			for range 2 {
				if err := h.Do(t.Context(), again); err != nil {
					t.Fatal(err)
				}
			}
			if done, err := h.Applied(t.Context(), again); !done || err != nil {
				t.Fatalf("%s: not applied after it was done (%v)", s.Text, err)
			}
		}
		after, _ := memorySlices.Slices(t.Context())
		if again := Plan(desired, after, memorySlices.info); len(again) > 0 {
			t.Fatalf("a second plan: %v", texts(again))
		}
		if len(after) != len(desired) {
			t.Fatalf("%d slices, %d desired", len(after), len(desired))
		}
		for i, s := range slices.Backward(steps) {
			if err := h.Undo(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			undone, _ := memorySlices.Slices(t.Context())
			if diff := cmp.Diff(states[i], undone); diff != "" {
				t.Fatalf("after undoing %s:\n%s", s.Text, diff)
			}
		}
	})
}

// A second plan is also empty with the adapter that enforces nothing.
func TestProcessesAdapter(t *testing.T) {
	port := cgroup.NewProcesses("a test")
	h := &Handler{Slices: port}
	want, _ := Desired(machine(t), []Tenant{{Name: "vision", Grants: []Grant{{Name: "big", Targets: []Target{whole(3)}}}}})
	steps := Plan(want, nil, port.Info())
	if len(steps) != 2 {
		t.Fatalf("%d steps", len(steps))
	}
	for _, s := range steps {
		if err := h.Do(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	is, err := port.Slices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again := Plan(want, is, port.Info()); len(again) > 0 {
		t.Errorf("again: %v", texts(again))
	}
}

func TestHandlerFails(t *testing.T) {
	broken := &memorySlices{info: everything, err: errors.New("no bus")}
	h := &Handler{Slices: broken}
	set := Plan([]cgroup.Slice{{Name: names[0]}}, nil, everything)[0]
	remove := Plan(nil, []cgroup.SliceState{{Name: names[0]}}, everything)[0]
	for _, s := range []step.Step{set, remove} {
		if err := h.Do(t.Context(), s); err == nil || !strings.Contains(err.Error(), "the slice of a: no bus") {
			t.Errorf("%s: %v", s.Kind, err)
		}
		if err := h.Undo(t.Context(), s); err == nil {
			t.Errorf("%s: undone without a bus", s.Kind)
		}
		if done, err := h.Applied(t.Context(), s); err == nil || done {
			t.Errorf("%s: applied %v, %v", s.Kind, done, err)
		}
		s.Args, s.Undo = json.RawMessage("[]"), json.RawMessage("[]")
		if h.Do(t.Context(), s) == nil || h.Undo(t.Context(), s) == nil {
			t.Errorf("%s: invalid arguments were accepted", s.Kind)
		}
	}
	odd := step.Step{Kind: "mig.create", Undo: step.Must(Previous{})}
	if h.Do(t.Context(), odd) == nil || h.Undo(t.Context(), odd) == nil {
		t.Error("a foreign step was carried out")
	}
	if _, err := h.Applied(t.Context(), odd); err == nil {
		t.Error("a foreign step was read")
	}
	odd.Undo = nil
	if err := h.Undo(t.Context(), odd); err != nil {
		t.Errorf("a step without undo data: %v", err)
	}
}
