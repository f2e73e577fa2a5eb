package cli_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// Lists and checks fit a terminal from 80 characters on, as the status does. What a program reads is not cut.
func TestListsFitTheTerminal(t *testing.T) {
	long := strings.Repeat("what is wrong here takes many words to say ", 5)
	doctor := api.Doctor{Checks: []api.Check{
		{Name: "driver", Result: "ok", Message: long},
		{Name: "front", Result: "warn", Message: long, Hint: long},
	}}
	idle := labIdle()
	for i := range idle.Uses {
		idle.Uses[i].Reason = strings.TrimSpace(long)
	}
	leases := accountedLeases()
	leases.Leases[1].Reason = strings.TrimSpace(long)
	for args, r := range map[string]routes{
		"gpu list":              {"GET /v1/status": busyNode()},
		"mig list":              {"GET /v1/status": busyNode()},
		"mps list":              {"GET /v1/status": busyNode()},
		"doctor":                {"GET /v1/doctor": doctor},
		"idle":                  {"GET /v1/idle": idle},
		"usage --month 2025-02": {"GET /v1/usage": labMonth()},
		"lease list --since 1d": {"GET /v1/leases": leases},
	} {
		for _, columns := range []int{80, 100, 120, 200} {
			t.Run(fmt.Sprintf("%s in %d", args, columns), func(t *testing.T) {
				out := onScreen(t, r, columns, args)
				if out.err != "" && !strings.Contains(out.err, "were lost") || len(out.out) < 100 {
					t.Fatalf("%+v", out)
				}
				for line := range strings.Lines(out.out) {
					line = strings.TrimRight(line, "\n")
					// The command that ends a lease, and the first line of usage, are one piece.
					if n := utf8.RuneCountInString(
						line,
					); n > columns && !strings.HasPrefix(line, "  gpushare ") &&
						!strings.Contains(line, "capacity") {
						t.Errorf("a line has %d characters: %s", n, line)
					}
				}
			})
		}
		if s := run(t, r, "", strings.Fields(args)...); strings.Contains(s.out, "…") {
			t.Errorf("%s is cut without a terminal:\n%s", args, s.out)
		}
	}
}

// 'lease list' selects as 'status' and 'lease stop' do, of live leases and of those of the account.
func TestLeaseListSelects(t *testing.T) {
	ended := func(id, tenant, user string, uid int, gpus ...string) api.Lease {
		return api.Lease{ID: id, Tenant: tenant, User: user, UID: uid, State: api.LeaseEnded, GPUs: gpus, Ended: new(noon)}
	}
	node := busyNode()
	node.Tenants = append(node.Tenants, api.TenantStatus{Name: "new"})
	r := routes{
		"GET /v1":        api.Info{Caller: api.Caller{UID: 1002, User: "bob"}},
		"GET /v1/status": node,
		"GET /v1/leases": api.LeaseList{Leases: []api.Lease{
			ended("old-1", "vision", "alice", 1001, gpu0), ended("old-2", "speech", "bob", 1002, gpu1),
			ended("old-3", "former", "carol", 1003, "GPU-of-another-board"),
		}},
	}
	every := func(keep func(*api.Lease) bool) (ids []string) {
		for _, l := range busyNode().Leases {
			if keep(&l) {
				ids = append(ids, l.ID)
			}
		}
		return ids
	}
	for args, want := range map[string][]string{
		"--tenant vision":            every(func(l *api.Lease) bool { return l.Tenant == "vision" }),
		"--user bob":                 every(func(l *api.Lease) bool { return l.User == "bob" }),
		"--mine":                     every(func(l *api.Lease) bool { return l.UID == 1002 }),
		"--since 1d --tenant speech": {"old-2"},
		"--since 1d --user alice":    {"old-1"},
		"--since 1d --mine":          {"old-2"},
		"--since 1d --gpu 1":         {"old-2"},
		"--since 1d":                 {"old-1", "old-2", "old-3"},
		"--since 1d --tenant former": {"old-3"},

		"--since 1d --gpu GPU-of-another-board": {"old-3"},
	} {
		if len(want) == 0 {
			t.Fatalf("%s: the fixture has no such lease", args)
		}
		out := run(t, r, "", append([]string{"lease", "list", "-o", "name"}, strings.Fields(args)...)...)
		if got := strings.Fields(out.out); out.code != 0 || !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q: %s", args, got, want, out.err)
		}
	}
	if out := run(t, r, "", "lease", "list", "--since", "1d", "--tenant", "new"); out.code != 0 || out.out != "no leases\n" {
		t.Errorf("a tenant without leases: exit code %d, %q: %s", out.code, out.out, out.err)
	}
	for args, says := range map[string]string{
		"--tenant nosuch": `there is no tenant "nosuch"`, "--gpu 77": `there is no GPU "77"`, "--mine --user bob": "exclude each other",
	} {
		if out := run(
			t,
			r,
			"",
			append([]string{"lease", "list"}, strings.Fields(args)...)...); out.code == 0 ||
			!strings.Contains(out.err, says) {
			t.Errorf("%s: exit code %d: %s", args, out.code, out.err)
		}
	}
}

// A date is one of UTC, so that times of the account have their zone; a month is shown in UTC.
func TestTimesOfUsageHaveTheirZone(t *testing.T) {
	cli.SetNow(func() time.Time { return noon })
	defer cli.SetZone(time.FixedZone("IST", 5*3600+1800))()
	month := labMonth()
	for args, want := range map[string]string{
		"usage":                 "2025-02-01 05:30 to 2025-03-01 05:30 IST",
		"usage --month 2025-02": "2025-02-01 00:00 to 2025-03-01 00:00 UTC",
		"usage --plot":          "2025-02-22 17:30 to 2025-03-01 17:30 IST",
	} {
		r := routes{"GET /v1/usage": month}
		if strings.Contains(args, "plot") {
			r = routes{"GET /v1/usage": labWeek()}
		}
		if out := run(t, r, "", strings.Fields(args)...); out.code != 0 || !strings.Contains(out.out, want) {
			t.Errorf("%s: no %q in\n%s%s", args, want, out.out, out.err)
		}
	}
}

// A GPU that was never idle while a lease waited has no note about it.
func TestNoNoteOfNoIdleTime(t *testing.T) {
	for idle, want := range map[float64]bool{0: false, 0.4: false, 0.6: true, 30: true} {
		s := labNode()
		for i := range s.GPUs {
			if s.GPUs[i].TimeSlices != nil {
				s.GPUs[i].TimeSlices.IdleWhileWaiting = new(idle)
			}
		}
		if out := run(t, routes{"GET /v1/status": s}, "", "status"); strings.Contains(out.out, "of the time while a lease waited") != want {
			t.Errorf("%v %%: %s", idle, out.out)
		}
	}
}
