package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestLimitWrites(t *testing.T) {
	all := LimitNames()
	tests := []struct {
		name     string
		is, want Limits
		names    []string
		writes   []fileWrite
	}{
		{name: "no limit desired, no limit set", names: all},
		{
			name:  "everything",
			names: all,
			want: Limits{
				CPUQuota: new(250.0), CPUWeight: new(uint64(200)), CPUs: "0-3,8", MemoryMax: new(uint64(64<<20 + 1)),
				MemoryHigh: new(uint64(60 << 20)), SwapMax: new(uint64(0)), TasksMax: new(uint64(4096)), IOWeight: new(uint64(50)),
			},
			writes: []fileWrite{
				{"cpu.max", "250000 100000"},
				{"cpu.weight", "200"},
				{"memory.max", "67108864"},
				{"memory.high", "62914560"},
				{"memory.swap.max", "0"},
				{"pids.max", "4096"},
				{"io.weight", "default 50"},
				{"cpuset.cpus", "0-3,8\n"},
			},
		},
		{
			name: "removed", names: all,
			is:     Limits{CPUQuota: new(250.0), TasksMax: new(uint64(5)), CPUs: "1"},
			writes: []fileWrite{{"cpu.max", "max 100000"}, {"pids.max", "max"}, {"cpuset.cpus", "\n"}},
		},
		{
			name: "a limit without a controller is not written", names: []string{"tasks"},
			want:   Limits{CPUQuota: new(250.0), TasksMax: new(uint64(0))},
			writes: []fileWrite{{"pids.max", "1"}},
		},
		{
			name: "equivalent limits", names: all,
			is:   Limits{CPUQuota: new(100.0), CPUs: "0-3"},
			want: Limits{CPUQuota: new(99.5), CPUWeight: new(uint64(100)), CPUs: "3,2,1,0"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := limitWrites(tt.is, tt.want, tt.names)
			if d := cmp.Diff(tt.writes, got, cmp.AllowUnexported(fileWrite{})); d != "" {
				t.Errorf("writes (-want +got):\n%s", d)
			}
		})
	}
}

func anyLimits(t *rapid.T) Limits {
	number := func(name string, low, high uint64) *uint64 {
		return rapid.Ptr(rapid.Uint64Range(low, high), true).Draw(t, name)
	}
	return Limits{
		CPUQuota:   rapid.Ptr(rapid.Float64Range(0.1, 100000), true).Draw(t, "quota"),
		CPUWeight:  number("cpu weight", 1, 10000),
		CPUs:       rapid.SampledFrom([]string{"", "0", "0-7", "1,3,5-6"}).Draw(t, "cpus"),
		MemoryMax:  number("memory max", 0, 1<<50),
		MemoryHigh: number("memory high", 0, 1<<50),
		SwapMax:    number("swap max", 0, 1<<50),
		TasksMax:   number("tasks", 0, 1<<22),
		IOWeight:   number("io weight", 1, 10000),
	}
}

// The written limits read back as the same limits, and then nothing more is written.
func TestLimitsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyLimits(t)
		files := map[string]string{}
		for _, w := range limitWrites(Limits{}, want, LimitNames()) {
			files[w.file] = w.value
		}
		got, err := readLimits(LimitNames(), func(k limitFile) (string, bool, error) { s, ok := files[k.file]; return s, ok, nil })
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want.Canonical(), got); d != "" {
			t.Errorf("(-want +read):\n%s", d)
		}
		if w := limitWrites(got, want, LimitNames()); len(w) > 0 {
			t.Errorf("a second time writes %v", w)
		}
		if !want.Equal(got) || !got.Equal(want.Canonical()) {
			t.Errorf("%+v and %+v have the same effect and are not equal", want, got)
		}
	})
}

func TestReadLimitsOfTheKernel(t *testing.T) {
	files := map[string]string{
		"cpu.max": "max 100000\n", "cpu.weight": "100\n", "memory.max": "max\n", "memory.high": "1073741824\n",
		"pids.max": "max\n", "io.weight": "default 200\n8:0 50\n", "cpuset.cpus": "\n",
	}
	got, err := readLimits(LimitNames(), func(k limitFile) (string, bool, error) { s, ok := files[k.file]; return s, ok, nil })
	if err != nil {
		t.Fatal(err)
	}
	want := Limits{MemoryHigh: new(uint64(1 << 30)), IOWeight: new(uint64(200))}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, bad := range []string{"", "1", "x 100000", "1 0", "1 x"} {
		if _, err := readLimits(
			[]string{"cpu"}, func(k limitFile) (string, bool, error) { return bad, k.file == "cpu.max", nil },
		); err == nil {
			t.Errorf("cpu.max %q was read", bad)
		}
	}
}

func TestOnly(t *testing.T) {
	l := Limits{CPUQuota: new(50.0), MemoryMax: new(uint64(1 << 20)), TasksMax: new(uint64(7)), CPUs: "0", IOWeight: new(uint64(10))}
	kept, dropped := l.Only([]string{"tasks"})
	if d := cmp.Diff(Limits{TasksMax: new(uint64(7))}, kept); d != "" {
		t.Errorf("kept (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"cpu", "memory", "io", "cpuset"}, dropped); d != "" {
		t.Errorf("dropped (-want +got):\n%s", d)
	}
}

func TestSortRulesMerges(t *testing.T) {
	got := SortRules([]DeviceRule{
		{Type: 'c', Major: 195, Minor: 255, Access: "rw"},
		{Type: 'c', Major: 195, Minor: 0, Access: "w"},
		{Type: 'b', Major: 8, Minor: 0, Access: "r"},
		{Type: 'c', Major: 195, Minor: 0, Access: "mr", Name: "/dev/nvidia0"},
	})
	want := []DeviceRule{
		{Type: 'b', Major: 8, Minor: 0, Access: "r"},
		{Type: 'c', Major: 195, Minor: 0, Access: "rwm", Name: "/dev/nvidia0"},
		{Type: 'c', Major: 195, Minor: 255, Access: "rw"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestCPUs(t *testing.T) {
	for in, want := range map[string]string{"": "", " ": "", "0": "0", "3,1,2": "1-3", "0-1,1-2,5": "0-2,5", "7": "7"} {
		cpus, err := ParseCPUs(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
		}
		if got := FormatCPUs(cpus); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	for _, bad := range []string{",", "1,", "3-1", "x", "-1", "0-99999", "1-2-3"} {
		if cpus, err := ParseCPUs(bad); err == nil {
			t.Errorf("%q was read as %v", bad, cpus)
		}
	}
}

func TestFindMount(t *testing.T) {
	tests := []struct {
		name, info, want string
	}{
		{"none", "23 1 0:5 / /proc rw - proc proc rw\n", ""},
		{"pure v2", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n", "/sys/fs/cgroup"},
		{
			"next to v1",
			"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"/sys/fs/cgroup/unified",
		},
		{"a mount of a subtree", "41 31 0:38 /docker/1 /mnt rw - cgroup2 cgroup2 rw\n", ""},
		{"a space in the path", "41 31 0:38 / /mnt/a\\040b rw - cgroup2 cgroup2 rw\n", "/mnt/a b"},
		{"garbage", "\n\nx - cgroup2\n - \n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := findMount(tt.info); got != tt.want || ok != (tt.want != "") {
				t.Errorf("got %q, %v; want %q", got, ok, tt.want)
			}
		})
	}
}

func TestScopeIndexUsesTheLongestPrefix(t *testing.T) {
	var x ScopeIndex
	x.Register("outer", "/g/a.scope")
	x.Register("inner", "/g/a.scope/run/b.scope")
	tests := map[string]string{
		"/g/a.scope": "outer", "/g/a.scope/run": "outer", "/g/a.scope/run/b.scope/x/y": "inner",
		"/g/a.scopes": "", "/g": "", "/": "", "": "", "/other": "",
	}
	for cg, want := range tests {
		if got, ok := x.lookup([]byte(cg)); got != want || ok != (want != "") {
			t.Errorf("%q belongs to %q, want %q", cg, got, want)
		}
	}
	x.Register("outer", "/g/elsewhere")
	if id, ok := x.lookup([]byte("/g/a.scope/run")); ok {
		t.Errorf("the old path still belongs to %q", id)
	}
	x.Forget("outer")
	x.Forget("outer")
	if id, ok := x.lookup([]byte("/g/elsewhere")); ok {
		t.Errorf("a forgotten path belongs to %q", id)
	}
}

func TestBelow(t *testing.T) {
	for _, tt := range []struct {
		cg, top string
		want    bool
	}{{"/a/b", "/a", true}, {"/a", "/a", true}, {"/ab", "/a", false}, {"/", "/a", false}, {"/a", "/", true}} {
		if got := Below(tt.cg, tt.top); got != tt.want {
			t.Errorf("Below(%q, %q) = %v", tt.cg, tt.top, got)
		}
	}
}
