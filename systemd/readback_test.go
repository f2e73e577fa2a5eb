package systemd

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/cgroup"
)

// writeKernelFiles writes the files of a slice as a kernel would show them.
func writeKernelFiles(t *testing.T, a *Adapter, cg string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(a.h.Dir(cg), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(a.h.Dir(cg), file), []byte(files[file]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// kernelDefaults is visionTrain's limits as a kernel shows them.
func kernelDefaults() map[string]string {
	return map[string]string{
		"cgroup.controllers": "cpuset cpu io memory pids",
		"cpu.max":            "250000 100000", "cpu.weight": "200", "memory.max": "68719476736", "memory.high": "64424509440",
		"pids.max": "4096", "io.weight": "default 50", "cpuset.cpus": "0-3,9",
	}
}

// read is the slice as read back.
func read(t *testing.T, a *Adapter, name cgroup.SliceName) cgroup.SliceState {
	t.Helper()
	all, err := a.Slices(within(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(st cgroup.SliceState) bool { return st.Name == name })
	if i < 0 {
		t.Fatalf("no slice %s in %+v", name, all)
	}
	return all[i]
}

// What is shown is what the kernel does, not what systemd was given; and a difference is corrected.
func TestSlicesShowTheEffect(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	s := visionTrain()
	if _, err := a.SetSlice(ctx, s); err != nil {
		t.Fatal(err)
	}
	path := read(t, a, s.Name).Path
	for _, c := range []struct {
		name   string
		change map[string]string
		want   func(*cgroup.Limits)
		calls  []string
	}{
		{name: "as requested"},
		{
			name: "the cgroup was changed", change: map[string]string{"memory.max": "max"},
			want:  func(l *cgroup.Limits) { l.MemoryMax = nil },
			calls: []string{"SetUnitProperties " + trainUnit + " persistent MemoryMax"},
		},
		{
			name: "two of them", change: map[string]string{"memory.max": "max", "pids.max": "7"},
			want:  func(l *cgroup.Limits) { l.MemoryMax, l.TasksMax = nil, new(uint64(7)) },
			calls: []string{"SetUnitProperties " + trainUnit + " persistent MemoryMax,TasksMax"},
		},
		{
			name: "a controller was turned off", change: map[string]string{"cgroup.controllers": "cpuset cpu io pids", "memory.max": "", "memory.high": "", "memory.swap.max": ""},
			want:  func(l *cgroup.Limits) { l.MemoryMax, l.MemoryHigh, l.SwapMax = nil, nil, nil },
			calls: []string{"SetUnitProperties " + trainUnit + " persistent MemoryMax,MemoryHigh,MemorySwapMax"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.taken()
			if err := os.RemoveAll(a.h.Dir(path)); err != nil {
				t.Fatal(err)
			}
			files := kernelDefaults()
			maps.Copy(files, c.change)
			maps.DeleteFunc(files, func(_, v string) bool { return v == "" })
			writeKernelFiles(t, a, path, files)
			want := s.Limits.Canonical()
			if c.want != nil {
				c.want(&want)
			}
			if got := read(t, a, s.Name).Limits; !got.Equal(want) {
				t.Errorf("shown (-want +got):\n%s", cmp.Diff(want, got))
			}
			wrote, err := a.SetSlice(ctx, s)
			if err != nil || wrote != (len(c.calls) > 0) {
				t.Errorf("setting it: wrote %v, %v", wrote, err)
			}
			if d := cmp.Diff(c.calls, f.taken()); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
		})
	}
}

// A converge without changes costs one query, however many slices there are.
func TestSlicesQueryOnlyWhatChanged(t *testing.T) {
	a, f := openFake(t)
	dir := t.TempDir()
	for i := range a.roots {
		a.roots[i] = filepath.Join(dir, string(rune('a'+i)))
	}
	ctx := within(t, 10*time.Second)
	s := visionTrain()
	if _, err := a.SetSlice(ctx, s); err != nil {
		t.Fatal(err)
	}
	queried := func() []string {
		t.Helper()
		f.set(func() { f.queried = nil })
		if _, err := a.Slices(ctx); err != nil {
			t.Fatal(err)
		}
		var units []string
		f.set(func() { units = slices.Clone(f.queried) })
		slices.Sort(units)
		return units
	}
	all := []string{`gpushare-vision\x2dlab.slice`, trainUnit, "gpushare.slice"}
	slices.Sort(all)
	if d := cmp.Diff(all, queried()); d != "" {
		t.Fatalf("the first time (-want +got):\n%s", d)
	}
	if got := queried(); len(got) > 0 {
		t.Errorf("queried %v again, which did not change", got)
	}

	// A set-property of an administrator: a file in one of the directories.
	drop := filepath.Join(a.roots[1], trainUnit+".d")
	if err := os.MkdirAll(drop, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := queried(); !slices.Equal(got, []string{trainUnit}) {
		t.Errorf("after a set-property queried %v", got)
	}
	if got := queried(); !slices.Equal(got, []string{trainUnit}) {
		t.Errorf("queried %v directly after a set-property: another one could have the same time stamp", got)
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(drop, old, old); err != nil {
		t.Fatal(err)
	}
	if got := queried(); !slices.Equal(got, []string{trainUnit}) {
		t.Errorf("queried %v after the drop-ins changed", got)
	}
	if got := queried(); len(got) > 0 {
		t.Errorf("queried %v a minute after a set-property", got)
	}

	// A reload may change anything.
	before := a.bus.reloads.Load()
	if err := f.conn.Emit(managerPath, managerIface+".Reloading", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reload is reported", func() bool { return a.bus.reloads.Load() > before })
	if d := cmp.Diff(all, queried()); d != "" {
		t.Errorf("after a reload (-want +got):\n%s", d)
	}
}

// The device program was removed, and systemd still reports the slice as closed. That is noticed and corrected.
func TestSlicesReportAMissingDeviceProgram(t *testing.T) {
	programs, queries := 1, 0
	f, address := startFake(t, nil)
	a := open(t, Options{Address: address, Mount: fakeMount(t), DevicePrograms: func(string) (int, error) {
		queries++
		return programs, nil
	}})
	ctx := within(t, 10*time.Second)
	s := visionTrain()
	if _, err := a.SetSlice(ctx, s); err != nil {
		t.Fatal(err)
	}
	if st := read(t, a, s.Name); !st.Closed || len(st.Devices) == 0 {
		t.Errorf("with its program: %+v", st)
	}
	if wrote, err := a.SetSlice(ctx, s); wrote || err != nil {
		t.Errorf("as it should be: wrote %v, %v", wrote, err)
	}
	programs = 0
	if st := read(t, a, s.Name); st.Closed || len(st.Devices) > 0 {
		t.Errorf("without its program: %+v", st)
	}
	f.taken()
	if wrote, err := a.SetSlice(ctx, s); !wrote || err == nil {
		t.Errorf("a program that is not attached again: wrote %v, %v", wrote, err)
	}
	calls := f.taken()
	if want := "SetUnitProperties " + trainUnit + " runtime DeviceAllow,DeviceAllow"; !slices.Contains(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	queries = 0
	read(t, a, s.Name)
	if all, err := a.Slices(ctx); err != nil || queries != 2*closedOf(all) {
		t.Errorf("%d queries of the kernel for two readings of %d slices, %v", queries, len(all), err)
	}
}

// closedOf counts the slices with device rules; here all except the parents.
func closedOf(all []cgroup.SliceState) int {
	n := 0
	for _, st := range all {
		if st.Name.Grant != "" {
			n++
		}
	}
	return n
}
