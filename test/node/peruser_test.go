package node

import (
	"fmt"
	"os"
	"os/user"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// capped limits each user to two leases and 10 GiB, over the grants of two tenants.
const capped = `version: v1
node:
  enforce: on
  per_user: {leases: 2, gpu_memory: 10GiB}
gpus:
  - {select: {index: 2}, mode: timeslice}
tenants:
  - name: blue
    members: {users: [nobody]}
    grants:
      - {name: part, timeslice: {share: 40%, gpu_memory: 6GiB}}
      - {name: large, timeslice: {share: 10%, gpu_memory: 12GiB}}
  - name: green
    members: {users: [nobody]}
    grants:
      - {name: part, timeslice: {share: 20%, gpu_memory: 2GiB}}
      - {name: more, timeslice: {share: 20%, gpu_memory: 5GiB}}
`

// What a user may have is over all tenants, for every way a lease begins, and is shown.
func TestLimitsOfAUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	user, err := user.LookupId("65534")
	if err != nil {
		t.Fatal(err)
	}
	name := user.Username
	n := start(t, quick)
	apply(t, n, capped)
	refused := func(code int, text string, args ...string) {
		t.Helper()
		if r := as(t, n, args...); r.Code != code || !strings.Contains(r.Err, text) {
			t.Errorf("%v exits with %d, want %d and %q: %s%s", args, r.Code, code, text, r.Out, r.Err)
		}
	}
	begins := func(tenant, grant string) string {
		t.Helper()
		r := as(t, n, "run", "-q", "--detach", "-t", tenant, "--grant", grant, "--", "sleep", "60")
		id := strings.TrimSpace(r.Out)
		if r.Code != 0 || id == "" {
			t.Fatalf("run exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
		return id
	}
	id := begins("blue", "part")
	refused(
		125, name+" has 6 GiB of 10 GiB of GPU memory, and this needs 5 GiB more (per_user.gpu_memory)", "run", "-t", "green",
		"--grant", "more", "--", "true",
	)
	refused(
		125, "it needs 12 GiB of GPU memory, and a user may have 10 GiB (per_user.gpu_memory)", "run", "--wait", "-t", "blue",
		"--grant", "large", "--", "true",
	)
	other := begins("green", "part")
	full := name + " has 2 of 2 leases (per_user.leases)"
	refused(125, full, "run", "-t", "green", "--grant", "part", "--", "true")
	refused(125, full, "run", "--detach", "-t", "blue", "--grant", "part", "--", "true")
	// Root has no limit.
	_, mine := begin(t, n, "green", "more", "sleep", "60")

	s := status(t, n)
	want := []api.UserStatus{
		{User: name, UID: 65534, Leases: 2, MaxLeases: 2, GPUMemory: api.UserMemory{Granted: 8 << 30, Limit: 10 << 30}},
	}
	if len(s.Users) != 1 || s.Users[0] != want[0] {
		t.Errorf("the users are %+v", s.Users)
	}
	if r := n.CLI(soon(t), "explain", id); !strings.Contains(r.Out, name+" has 2 of 2 leases, 8 GiB of 10 GiB of GPU memory") {
		t.Errorf("explain says:\n%s", r.Out)
	}
	if r := as(t, n, "status"); !strings.Contains(r.Out, "2 of 2") {
		t.Errorf("status says:\n%s", r.Out)
	}
	// Lowered below use: the leases stay, a new one waits.
	apply(t, n, replaced(t, capped, "leases: 2", "leases: 1"))
	s = status(t, n)
	for _, l := range []string{id, other, mine} {
		if leaseByID(s, l) == nil {
			t.Errorf("%s was ended", l)
		}
	}
	refused(125, name+" has 2 of 1 leases (per_user.leases)", "run", "-t", "green", "--grant", "part", "--", "true")
	for _, l := range []string{id, other} {
		if r := as(t, n, "lease", "stop", l); r.Code != 0 {
			t.Errorf("lease stop exits with %d: %s", r.Code, r.Err)
		}
	}
	if r := as(t, n, "run", "-t", "green", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("run exits with %d: %s", r.Code, r.Err)
	}
	// What an administrator attaches is the user's whose process it is.
	p := startOutside(t, n, 65534, "sleep", "60")
	id = attach(t, n, "--pid", fmt.Sprint(p.pid()), "-t", "blue", "--grant", "part")
	refused(125, name+" has 1 of 1 leases (per_user.leases)", "run", "-t", "green", "--grant", "part", "--", "true")
	if r := n.CLI(soon(t), "lease", "release", id); r.Code != 0 {
		t.Fatalf("release exits with %d: %s", r.Code, r.Err)
	}
	if r := as(t, n, "run", "-t", "green", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("after the release run exits with %d: %s", r.Code, r.Err)
	}
}
