package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// What a MIG instance did is shown of the instance and of its lease, and what the driver does not report is '-', never 0.
func TestUseOfInstances(t *testing.T) {
	s := labNode()
	use := &api.InstanceUse{Busy: ptr(62.5), Multiprocessors: ptr(0.0), IntervalSeconds: 10, ReadAt: noon}
	for i := range s.GPUs[0].MIG.Instances {
		if in := &s.GPUs[0].MIG.Instances[i]; in.Lease == "vision-3kq6" {
			in.Use = use
		}
	}
	for i := range s.Leases {
		if s.Leases[i].ID == "vision-3kq6" {
			s.Leases[i].Use = use
		}
	}
	row := func(beginning string, args ...string) string {
		t.Helper()
		r := run(t, routes{"GET /v1/status": s}, "", args...)
		lines := strings.Split(r.out, "\n")
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), beginning) })
		if i < 0 {
			t.Fatalf("no row %q of %v: %s", beginning, args, r.all)
		}
		return strings.Join(strings.Fields(lines[i]), " ")
	}
	for _, c := range []struct{ want, got string }{
		{"3g.20gb at 4 1.4 GiB / 19.5 GiB 62% vision-3kq6", row("3g.20gb at 4", "status")},
		{"1g.5gb at 2 0 / 4.8 GiB - foreign: not created by gpushare", row("1g.5gb at 2", "status")},
		{"use 62% of the time busy, 0% of the multiprocessors, in 10 s", row("use", "lease", "show", "vision-3kq6")},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	if got := row("vision-3kq6", "lease", "list"); !strings.Contains(got, " 62% busy ") {
		t.Errorf("lease list: %q", got)
	}
	if got := run(
		t,
		routes{"GET /v1/status": s},
		"",
		"lease",
		"list",
		"-o",
		"name",
		"--sort",
		"share",
	).out; !strings.HasPrefix(
		got,
		"vision-3kq6\n",
	) {
		t.Errorf("by share: %q", got)
	}
}
