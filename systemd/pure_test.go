package systemd

import (
	"net"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/cgroup"
)

// netListener accepts connections and never answers.
type netListener struct {
	l  net.Listener
	wg sync.WaitGroup
	mu sync.Mutex
	cs []net.Conn // guarded by mu
}

func (n *netListener) listen(socket string) (*netListener, error) {
	var err error
	if n.l, err = net.Listen("unix", socket); err != nil {
		return nil, err
	}
	n.wg.Go(func() {
		for {
			c, err := n.l.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			n.cs = append(n.cs, c)
			n.mu.Unlock()
		}
	})
	return n, nil
}

func (n *netListener) stop() {
	n.l.Close()
	n.wg.Wait()
	for _, c := range n.cs {
		c.Close()
	}
}

func TestUnitNames(t *testing.T) {
	tests := []struct {
		name cgroup.SliceName
		unit string
	}{
		{cgroup.SliceName{}, "gpushare.slice"},
		{cgroup.SliceName{Tenant: "vision"}, "gpushare-vision.slice"},
		{cgroup.SliceName{Tenant: "vision-lab", Grant: "big-one"}, `gpushare-vision\x2dlab-big\x2done.slice`},
		{cgroup.SliceName{Tenant: "a.b_c", Grant: "x"}, "gpushare-a.b_c-x.slice"},
	}
	for _, tt := range tests {
		if got := sliceUnit("gpushare", tt.name); got != tt.unit {
			t.Errorf("%v is %s, want %s", tt.name, got, tt.unit)
		}
		if got, ok := sliceOf("gpushare", tt.unit); !ok || got != tt.name {
			t.Errorf("%s is %v, %v, want %v", tt.unit, got, ok, tt.name)
		}
	}
	for _, unit := range []string{"user.slice", "gpushare-a-b-c.slice", "gpushare-.slice", "gpusharex.slice", `gpushare-a\x2.slice`, `gpushare-\x2f.slice`, "gpushare-a.scope"} {
		if n, ok := sliceOf("gpushare", unit); ok {
			t.Errorf("%s is not of gpushare and was read as %v", unit, n)
		}
	}
	if id, ok := scopeOf("gpushare", scopeUnit("gpushare", "l-1")); !ok || id != "l-1" {
		t.Errorf("scope %q, %v", id, ok)
	}
}

func TestEscapeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		back, err := unescape(escape(s))
		if err != nil || back != s {
			t.Errorf("%q became %q, %v", s, back, err)
		}
	})
}

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]int{
		"257": 257, "v252": 252, "252.39-1~deb12u1": 252, "systemd 249 (249.11-0ubuntu3)": 249, `"v245"`: 245, "": 0, "unknown": 0,
		"257~rc1": 257, "99999999999999999999": 9_999_999,
	} {
		if got := parseVersion(in); got != want {
			t.Errorf("%q is %d, want %d", in, got, want)
		}
	}
}

func TestLimitsSince(t *testing.T) {
	all := []string{"cpuset", "cpu", "io", "memory", "pids"}
	if d := cmp.Diff([]string{"cpu", "memory", "tasks", "io"}, limitsSince(243, all)); d != "" {
		t.Errorf("before AllowedCPUs (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"cpu", "tasks"}, limitsSince(257, []string{"cpu", "pids", "rdma"})); d != "" {
		t.Errorf("fewer controllers (-want +got):\n%s", d)
	}
}

// What is written to systemd reads back as the same limits.
func TestLimitsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string, low, high uint64) *uint64 {
			return rapid.Ptr(rapid.Uint64Range(low, high), true).Draw(t, name)
		}
		want := cgroup.Limits{
			CPUQuota: rapid.Ptr(rapid.Float64Range(0.1, 100000), true).Draw(t, "quota"), CPUWeight: number("weight", 1, 10000),
			CPUs:      rapid.SampledFrom([]string{"", "0", "0-8", "7,8,64"}).Draw(t, "cpus"),
			MemoryMax: number("max", 0, 1<<50), MemoryHigh: number("high", 0, 1<<50), SwapMax: number("swap", 0, 1<<50),
			TasksMax: number("tasks", 1, 1<<22), IOWeight: number("io", 1, 10000),
		}
		values, err := limitValues(want)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want.Canonical(), limitsOf(values)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

func TestRuleOf(t *testing.T) {
	for in, want := range map[string]cgroup.DeviceRule{
		"/dev/char/195:0": {Type: 'c', Major: 195, Access: "rw", Name: "/dev/char/195:0"},
		"/dev/block/8:16": {Type: 'b', Major: 8, Minor: 16, Access: "rw", Name: "/dev/block/8:16"},
		"/dev/fuse":       {Access: "rw", Name: "/dev/fuse"},
		"char-pts":        {Access: "rw", Name: "char-pts"},
		"/dev/char/x:y":   {Access: "rw", Name: "/dev/char/x:y"},
	} {
		if got := ruleOf(in, "rw"); got != want {
			t.Errorf("%s is %+v, want %+v", in, got, want)
		}
	}
}
