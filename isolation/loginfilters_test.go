package isolation

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// filterHost is a node with the GPUs 0 to 3 and two GPU instances' capabilities of each.
func filterHost() *Hardware {
	h := &Hardware{Host: Host{Majors: map[string]uint32{capsDriver: 237, "nvidia-uvm": 509}, Caps: Caps{}}}
	for i := range 4 {
		h.GPUs = append(h.GPUs, gpu.Snapshot{Identity: gpu.Identity{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Minor: i}})
		for gi := range uint32(2) {
			h.Host.Caps[fmt.Sprintf("gpu%d/gi%d/access", i, gi)] = usual(i, gi, -1)
			h.Host.Caps[fmt.Sprintf("gpu%d/gi%d/ci0/access", i, gi)] = usual(i, gi, 0)
		}
	}
	return h
}

func TestLoginFiltersCloseManagedGPUs(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(h *Hardware)
		managed []gpu.UUID
		closed  string
	}{
		{name: "two GPUs", managed: []gpu.UUID{"GPU-0", "GPU-2"}, closed: "[c 195:0 c 195:2 c 237:3-4 c 237:12-13 c 237:273-274 c 237:282-283]"},
		{name: "none", closed: "[]"},
		{
			name: "no capabilities", managed: []gpu.UUID{"GPU-1"}, closed: "[c 195:1]",
			change: func(h *Hardware) { h.Host.Majors, h.Host.Caps = nil, nil },
		},
		{
			name: "capabilities that the driver does not attribute to GPUs", managed: []gpu.UUID{"GPU-1"}, closed: "[c 195:1 c 237:*]",
			change: func(h *Hardware) { h.Host.Caps = nil },
		},
		// It may return with any minor that no other GPU has.
		{name: "a managed GPU is missing", managed: []gpu.UUID{"GPU-0", "GPU-9"}, closed: "[c 195:0 c 195:4-253 c 237:0-137 c 237:140-146 c 237:149-272 c 237:275-281 c 237:284-407 c 237:410-416]"},
		{
			name: "a managed GPU has no minor", managed: []gpu.UUID{"GPU-0", "GPU-1", "GPU-2", "GPU-3"}, closed: "[c 195:0-253 c 237:*]",
			change: func(h *Hardware) { h.GPUs[3].Identity.Minor = -1 },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := filterHost()
			if c.change != nil {
				c.change(h)
			}
			states, missing := LoginFilters(h, c.managed, []string{"/user.slice"}, nil)
			if len(states) != 1 || states[0].Cgroup != "/user.slice" || len(missing) > 0 {
				t.Fatalf("%+v, %v", states, missing)
			}
			if got := fmt.Sprint(states[0].Filter.Closed); got != c.closed {
				t.Errorf("closed is %s, want %s", got, c.closed)
			}
		})
	}
}

func TestLoginFiltersExceptLeasesInPlace(t *testing.T) {
	h := filterHost()
	all := []gpu.UUID{"GPU-0", "GPU-1", "GPU-2", "GPU-3"}
	inPlace := []InPlaceLease{
		{Lease: "a", UID: 1000, Cgroup: "/user.slice/user-1000.slice/session-1.scope", Targets: []Target{{GPU: "GPU-2"}}},
		{Lease: "b", UID: 1001, Targets: []Target{{GPU: "GPU-3"}}}, // the cgroup is unknown
		{Lease: "c", UID: 1002, Cgroup: "/system.slice/cron.service", Targets: []Target{{GPU: "GPU-1"}}},
		{Lease: "d", UID: 0, Cgroup: "/system.slice/jupyter.service", Unit: true, Targets: []Target{{GPU: "GPU-1"}}},
		{Lease: "e", UID: 1003, Cgroup: "/user.slice/x", Targets: []Target{{GPU: "GPU-9"}}},
	}
	states, missing := LoginFilters(h, all, []string{"/user.slice", "/system.slice/cron.service"}, inPlace)
	if len(states) != 3 || len(missing) != 1 || !strings.Contains(missing[0], "lease e") {
		t.Fatalf("%+v, %v", states, missing)
	}
	said := func(g device.LoginFilter) string {
		var parts []string
		for _, e := range g.Except {
			parts = append(parts, fmt.Sprintf("%d:%d", e.UID, e.Rule.Minor))
		}
		return strings.Join(parts, " ")
	}
	if got := said(states[0].Filter); got != "1000:2 1001:3" {
		t.Errorf("exceptions of logins: %s", got)
	}
	if got := said(states[1].Filter); states[1].Cgroup != "/system.slice/cron.service" || got != "1001:3 1002:1" {
		t.Errorf("%s has the exceptions %s", states[1].Cgroup, got)
	}
	if got := said(states[2].Filter); states[2].Cgroup != "/system.slice/jupyter.service" || got != "4294967295:1" {
		t.Errorf("%s has the exceptions %s", states[1].Cgroup, got)
	}
	if states, _ := LoginFilters(h, all, nil, inPlace[3:4]); len(states) != 1 || states[0].Cgroup != "/system.slice/jupyter.service" {
		t.Errorf("without a cgroup of logins: %+v", states)
	}
}

func drawFilter(t *rapid.T, name string) device.LoginFilter {
	var g device.LoginFilter
	for range rapid.IntRange(0, 3).Draw(t, name+" ranges") {
		first := rapid.Uint32Range(0, 6).Draw(t, "first")
		g.Closed = append(
			g.Closed, device.Range{Type: 'c', Major: gpuMajor, First: first, Last: first + rapid.Uint32Range(0, 3).Draw(t, "more")},
		)
	}
	for range rapid.IntRange(0, 4).Draw(t, name+" exceptions") {
		g.Except = append(g.Except, device.Exception{
			UID:  rapid.Uint32Range(1000, 1002).Draw(t, "user"),
			Rule: device.Rule{Type: 'c', Major: gpuMajor, Minor: rapid.Uint32Range(0, 9).Draw(t, "minor"), Access: "rw"},
		})
	}
	return g.Canonical()
}

func allows(g device.LoginFilter, uid, minor uint32) bool {
	closed := slices.ContainsFunc(g.Closed, func(r device.Range) bool { return r.Has('c', gpuMajor, minor) })
	return !closed || slices.ContainsFunc(g.Except, func(e device.Exception) bool { return e.UID == uid && e.Rule.Minor == minor })
}

// Between the two steps a filter allows exactly what both the old and the new one allow.
func TestRestrictFilterAllowsWhatBothAllow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, want := drawFilter(t, "is"), drawFilter(t, "want")
		restricted := restrictFilter(from, want)
		for uid := uint32(1000); uid <= 1002; uid++ {
			for minor := range uint32(10) {
				if got, both := allows(restricted, uid, minor), allows(from, uid, minor) && allows(want, uid, minor); got != both {
					t.Fatalf("user %d, device %d: %v, want %v; from %+v by %+v to %+v", uid, minor, got, both, from, restricted, want)
				}
			}
		}
	})
}

func TestPlanLoginFilters(t *testing.T) {
	filter := func(first, last uint32, users ...uint32) device.LoginFilter {
		g := device.LoginFilter{Closed: []device.Range{{Type: 'c', Major: gpuMajor, First: first, Last: last}}}
		for _, u := range users {
			g.Except = append(g.Except, device.Exception{UID: u, Rule: device.Rule{Type: 'c', Major: gpuMajor, Minor: first, Access: "rw"}})
		}
		return g.Canonical()
	}
	at := func(cg string, g device.LoginFilter) []device.LoginFilterState {
		return []device.LoginFilterState{{Cgroup: cg, Filter: g}}
	}
	const logins = "/user.slice"
	for _, c := range []struct {
		name      string
		want, are []device.LoginFilterState
		steps     []string
	}{
		{name: "nothing"},
		{name: "as desired", want: at(logins, filter(0, 3, 1000)), are: at(logins, filter(0, 3, 1000))},
		{name: "a new one", want: at(logins, filter(0, 3)), steps: []string{"revoke: close /dev/nvidia0-3 to logins (/user.slice)"}},
		{name: "of a unit", want: at("/a.service", filter(2, 2, device.AnyUser)), steps: []string{"revoke: close /dev/nvidia2 to /a.service, except for its own lease"}},
		{name: "after the boot", want: at(logins, filter(0, 3)), are: at(logins, filter(0, lastGPU)), steps: []string{"grant: close only /dev/nvidia0-3 to logins (/user.slice)"}},
		{name: "one more user", want: at(logins, filter(0, 3, 1000)), are: at(logins, filter(0, 3)), steps: []string{"grant: close only /dev/nvidia0-3 to logins (/user.slice), except for 1 user with a lease"}},
		{name: "another user", want: at(logins, filter(0, 3, 1001)), are: at(logins, filter(0, 3, 1000)), steps: []string{"revoke: close /dev/nvidia0-3 to logins (/user.slice)", "grant: close only /dev/nvidia0-3 to logins (/user.slice), except for 1 user with a lease"}},
		{name: "none any more", are: at(logins, filter(0, 3)), steps: []string{"grant: remove the login filter of logins (/user.slice)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, s := range PlanLoginFilters(c.want, c.are, logins) {
				got = append(got, string(s.Phase)+": "+s.Text)
				for _, raw := range []json.RawMessage{s.Args, s.Undo} {
					var a LoginFilterArgs
					if err := json.Unmarshal(raw, &a); err != nil || a.Cgroup == "" {
						t.Errorf("%s: %s, %v", s.Text, raw, err)
					}
				}
				if s.Disruption != step.None {
					t.Errorf("%s disturbs: %s", s.Text, s.Disruption)
				}
			}
			if !slices.Equal(got, c.steps) {
				t.Errorf("steps %q, want %q", got, c.steps)
			}
		})
	}
}

// oneFilter is a host with one cgroup.
type oneFilter struct{ now *device.LoginFilter }

func (o *oneFilter) Filters(context.Context) ([]device.LoginFilterState, error) {
	if o.now == nil {
		return nil, nil
	}
	return []device.LoginFilterState{{Cgroup: "/user.slice", Filter: *o.now}}, nil
}

func (o *oneFilter) ChangeFilter(_ context.Context, _ string, change func(*device.LoginFilter) *device.LoginFilter) (bool, error) {
	o.now = change(o.now)
	return true, nil
}

// The steps lead from the observed filter to the desired one, also when leases started or ended since the plan. Undone they
// lead back.
func TestLoginFilterSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, want := drawFilter(t, "is"), drawFilter(t, "want")
		host := &oneFilter{now: &from}
		var observed []device.LoginFilterState
		if rapid.Bool().Draw(t, "active") {
			observed = []device.LoginFilterState{{Cgroup: "/user.slice", Filter: from}}
		} else {
			host.now = nil
		}
		h := &LoginFilterHandler{Host: host}
		steps := PlanLoginFilters([]device.LoginFilterState{{Cgroup: "/user.slice", Filter: want}}, observed, "/user.slice")
		// A lease of a device that remains closed starts between the plan and its steps.
		added := device.Exception{UID: 2000, Rule: device.Rule{Type: 'c', Major: gpuMajor, Minor: 3, Access: "rw"}}
		between := rapid.Bool().Draw(t, "a lease in between") && host.now != nil && !allows(from, 1, 3) && !allows(want, 1, 3)
		if between {
			g := device.LoginFilter{Closed: from.Closed, Except: append(slices.Clone(from.Except), added)}.Canonical()
			host.now = &g
		}
		before := host.now
		for _, s := range steps {
			for range 2 { // Do is idempotent
				if err := h.Do(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if applied, err := h.Applied(t.Context(), s); err != nil || !applied {
					t.Fatalf("%s: applied %v, %v", s.Text, applied, err)
				}
			}
		}
		end := want
		if between {
			end.Except = append(slices.Clone(end.Except), added)
		}
		if len(steps) > 0 && !host.now.Equal(end) {
			t.Fatalf("ended at %+v, want %+v", *host.now, end)
		}
		for _, s := range slices.Backward(steps) {
			if err := h.Undo(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		if (before == nil) != (host.now == nil) || before != nil && !before.Equal(*host.now) {
			t.Fatalf("undone to %+v, want %+v", host.now, before)
		}
	})
}

// A login may be adopted while the filter is set: its exception remains, and the step succeeds.
func TestALoginFilterIsSetWhileALeaseStarts(t *testing.T) {
	want := device.LoginFilter{Closed: []device.Range{{Type: 'c', Major: gpuMajor, First: 0, Last: 3}}}
	added := device.Exception{UID: 2000, Rule: device.Rule{Type: 'c', Major: gpuMajor, Minor: 3, Access: "rw"}}
	with := device.LoginFilter{Closed: want.Closed, Except: []device.Exception{added}}
	steps := PlanLoginFilters([]device.LoginFilterState{{Cgroup: "/user.slice", Filter: want}}, nil, "/user.slice")
	if len(steps) != 1 {
		t.Fatalf("%d steps", len(steps))
	}
	for _, first := range []bool{true, false} {
		host := &oneFilter{}
		h := &LoginFilterHandler{Host: host}
		if first { // the lease starts before the step
			host.now = &with
		}
		if err := h.Do(t.Context(), steps[0]); err != nil {
			t.Fatal(err)
		}
		host.now = &with
		if applied, err := h.Applied(t.Context(), steps[0]); err != nil || !applied {
			t.Errorf("applied %v, %v, lease first: %v", applied, err, first)
		}
		if err := h.Do(t.Context(), steps[0]); err != nil || !host.now.Equal(with) {
			t.Errorf("it ends at %+v, %v", host.now, err)
		}
		if err := h.Undo(t.Context(), steps[0]); err != nil || host.now != nil {
			t.Errorf("undone to %+v, %v", host.now, err)
		}
	}
}
