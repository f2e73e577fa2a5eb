package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
)

// busyNode has more than a small terminal shows.
func busyNode() *api.Status {
	s := &api.Status{
		At:   time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC),
		Node: api.NodeStatus{Host: "lab-with-a-long-name.example.org", Generation: 12345, Enforce: "on"},
	}
	used := 50
	for i := range 8 {
		g := api.GPUStatus{
			Index:  i,
			UUID:   fmt.Sprintf("GPU-%d", i),
			Mode:   "timeslice",
			State:  "ok",
			Memory: api.GPUMemory{Total: 80 << 30, Used: uint64(i) << 30},
		}
		if i < 4 {
			g.Mode = "mig" // The driver reports no utilisation in MIG mode.
		} else {
			g.Utilization = &used
		}
		s.GPUs = append(s.GPUs, g)
	}
	s.GPUs[7].State, s.GPUs[7].Reason = "held", strings.Repeat("the driver does not answer ", 5)
	for i := range 40 {
		tenant := fmt.Sprintf("tenant-with-a-long-name-%02d", i%10)
		l := api.Lease{
			ID:      fmt.Sprintf("%s-train-%04d", tenant, i),
			Tenant:  tenant,
			State:   "running",
			User:    "someone",
			GPUs:    []string{fmt.Sprintf("GPU-%d", i%8)},
			Command: []string{"python", strings.Repeat("x", 60)},
		}
		if i >= 35 {
			l.State, l.Position, l.Waiting = api.LeaseQueued, i-34, "its one lease is in use; "+strings.Repeat("GPU 3 is closed ", 5)
		}
		s.Leases = append(s.Leases, l)
	}
	for i := range 10 {
		s.Tenants = append(s.Tenants, api.TenantStatus{Name: fmt.Sprintf("tenant-with-a-long-name-%02d", i), Priority: "normal"})
	}
	return s
}

// A table fits its width, and a value that is not known is no 0.
func TestTopFits(t *testing.T) {
	for _, by := range []string{topGPUs, topTenants, topLeases} {
		for _, width := range []int{80, 200} {
			m := &topModel{by: by}
			for range 30 {
				m.take(busyNode())
			}
			for _, l := range m.frame(width) {
				if n := utf8.RuneCountInString(l); n > width {
					t.Errorf("%s in %d characters has a line of %d: %s", by, width, n, l)
				}
			}
		}
	}
	m := &topModel{by: topGPUs}
	m.take(busyNode())
	frame := strings.Join(m.frame(80), "\n")
	if strings.Contains(frame, "0%\n") || !strings.Contains(frame, "mig        ok     -     -") ||
		!strings.Contains(frame, "timeslice  ok     50%   ▅") {
		t.Errorf("the utilisation is not right:\n%s", frame)
	}
}

func TestTopKeepsThePast(t *testing.T) {
	m := &topModel{by: topGPUs}
	for i := range 2 * mostPast {
		s := busyNode()
		n := i % 101
		s.GPUs[4].Utilization = &n
		m.take(s)
	}
	if got := len(m.past["GPU-4"]); got != mostPast {
		t.Errorf("%d samples are kept, want %d", got, mostPast)
	}
	one, two, all := 0, 50, 100
	for want, past := range map[string][]*int{"▁▅█": {&one, &two, &all}, "▁ █": {&one, nil, &all}, "-": {nil, nil}} {
		if got := sparkline(past); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
