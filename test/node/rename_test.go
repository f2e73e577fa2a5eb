package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// named is a spec with one tenant, and renamed is it with another name of the tenant and of one of its grants.
const (
	named = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [2, 3]}, mode: timeslice}
tenants:
  - {name: red, tasks: 500, grants: [{name: part, timeslice: {share: 30%, gpu_memory: 8GiB}, gpus: {index: 2}, max_leases: 2}, {name: rest, timeslice: {share: 20%}}]}
`
	renamed = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [2, 3]}, mode: timeslice}
tenants:
  - {name: crimson, renamed_from: red, tasks: 500, grants: [{name: slot, renamed_from: part, timeslice: {share: 30%, gpu_memory: 8GiB}, gpus: {index: 2}, max_leases: 2}, {name: rest, timeslice: {share: 20%}}]}
`
)

// leaseNow is a lease as the status has it.
func leaseNow(t *testing.T, n *harness.Node, id string) api.Lease {
	t.Helper()
	for _, l := range status(t, n).Leases {
		if l.ID == id {
			return l
		}
	}
	t.Fatalf("lease %s is not in the status", id)
	return api.Lease{}
}

// A tenant and a grant are renamed while their leases run and a request waits: all go on under the new names, and back.
func TestRename(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, named)
	_, a := begin(t, n, "red", "part", "sleep", "600")
	_, b := begin(t, n, "red", "part", "sleep", "600")
	waiting, err := n.Run("-t", "red", "--grant", "part", "--wait", "--", "echo", "placed.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(waiting.Kill)
	if err := waiting.AwaitLine(soon(t), "waiting"); err != nil {
		t.Fatal(err)
	}
	before := leaseNow(t, n, a)
	r := n.CLIIn(soon(t), renamed, "apply", "-f", "-", "--check")
	if r.Code != 0 || !strings.Contains(r.Out, "rename tenant red to crimson: 2 leases go on, 1 request waits on") ||
		!strings.Contains(r.Out, "rename grant part of crimson to slot: 2 leases go on, 1 request waits on") ||
		strings.Contains(r.Out, "remove the cgroup slice of red") {
		t.Fatalf("the check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	apply(t, n, renamed)
	after := leaseNow(t, n, a)
	if after.Tenant != "crimson" || after.Grant != "slot" || after.PID != before.PID || after.State != api.LeaseRunning ||
		after.Isolation.Cgroup != before.Isolation.Cgroup {
		t.Errorf("the lease is %+v, it was %+v", after, before)
	}
	if r := n.CLIIn(soon(t), renamed, "apply", "-f", "-"); r.Code != 0 || !strings.Contains(r.Out, "no changes") {
		t.Errorf("a second apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "lease", "stop", b); r.Code != 0 {
		t.Fatalf("lease stop exits with %d: %s", r.Code, r.Err)
	}
	if err := waiting.AwaitLine(soon(t), "placed."); err != nil {
		t.Fatalf("%v: %s", err, waiting.Output())
	}
	if r := n.CLI(
		soon(t),
		"rollback",
		"--check",
	); r.Code != 0 ||
		!strings.Contains(r.Out, "rename tenant crimson to red: 1 lease goes on") {
		t.Errorf("the check of a rollback exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "rollback"); r.Code != 0 {
		t.Fatalf("rollback exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if back := leaseNow(t, n, a); back.Tenant != "red" || back.Grant != "part" || back.PID != before.PID {
		t.Errorf("after a rollback the lease is %+v", back)
	}
}

// What is recorded of a tenant goes on under its new name, over a restart of the daemon too: it stays frozen, its members are those of
// the spec, its limits are those of its slices, and what it used since is its. The slices of the former name go with the last lease.
func TestRenamedTenantKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	needsFreezer(t)
	n := start(t, quick)
	apply(t, n, named)
	id, _ := busy(t, n, "red")
	if r := n.CLI(soon(t), "tenant", "freeze", "red"); r.Code != 0 {
		t.Fatalf("tenant freeze exits with %d: %s", r.Code, r.Err)
	}
	apply(t, n, renamed)
	if got := tenantsOf(usage(t, n, "--by", "tenant")); !slices.Equal(got, []string{"crimson", "red"}) {
		t.Errorf("the account is of %v", got)
	}
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	l := leaseNow(t, n, id)
	if l.Tenant != "crimson" || l.Grant != "slot" {
		t.Errorf("after a restart the lease is of %s/%s", l.Tenant, l.Grant)
	}
	if r := n.CLI(soon(t), "run", "-t", "crimson", "--", "true"); !strings.Contains(r.Err, "root froze tenant crimson") {
		t.Errorf("a lease of the frozen tenant starts: %s%s", r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "tenant", "thaw", "crimson"); r.Code != 0 {
		t.Fatalf("tenant thaw exits with %d: %s", r.Code, r.Err)
	}
	// A new lease is in the slices of the former name, whose limits hold for both.
	_, next := begin(t, n, "crimson", "slot", "sleep", "600")
	if cg := leaseNow(t, n, next).Isolation.Cgroup; !strings.Contains(cg, "/red.slice/part.slice/") {
		t.Errorf("a new lease is in %s", cg)
	}
	e, err := n.Client().Explain(soon(t), next)
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range e.Rules {
		if rule.What == "devices" && !rule.Enforced && rule.Reason != "" && !strings.Contains(rule.Reason, "device programs") {
			t.Errorf("its devices are not enforced: %s", rule.Reason)
		}
	}
	both := slicesOf(t, n)
	if !hasSlice(both, "/red.slice/part.slice") || !hasSlice(both, "/crimson.slice/slot.slice") {
		t.Errorf("the slices are %v", both)
	}
	for _, one := range []string{id, next} {
		if r := n.CLI(soon(t), "lease", "stop", one); r.Code != 0 {
			t.Fatalf("lease stop exits with %d: %s", r.Code, r.Err)
		}
	}
	err = harness.Await(soon(t), 50*time.Millisecond, "the slices of the former name are still there", func() (bool, error) {
		return !hasSlice(slicesOf(t, n), "/red.slice"), n.Client().Reload(soon(t))
	})
	if err != nil {
		t.Errorf("%v: %v\n%s", err, slicesOf(t, n), daemonLog(n))
	}
	_, last := begin(t, n, "crimson", "slot", "sleep", "600")
	if cg := leaseNow(t, n, last).Isolation.Cgroup; !strings.Contains(cg, "/crimson.slice/slot.slice/") {
		t.Errorf("the first lease after all have ended is in %s", cg)
	}
}

func hasSlice(list []string, end string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.HasSuffix(s, end) })
}

func tenantsOf(u *api.Usage) (out []string) {
	for i := range u.Rows {
		out = append(out, u.Rows[i].Tenant)
	}
	slices.Sort(out)
	return out
}

// The daemon is killed at each point of a rename, while a lease of a frozen tenant runs. After the next start the lease and the freeze have
// the names of the spec in force, and the second apply of the same file leads to it.
func TestDaemonKilledInARename(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := newNode(t, quick)
	n.Bin = buildWithFaults(t)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	if r := n.CLIIn(soon(t), named, "apply", "-f", "-"); r.Code != 0 {
		t.Fatal(r.Err, daemonLog(n))
	}
	_, id := begin(t, n, "red", "part", "sleep", "600")
	pid := leaseNow(t, n, id).PID
	info, err := n.Client().Info(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	frozen := info.Adapter != "processes" // Nothing else can be frozen, as of an ordinary user.
	if frozen {
		if r := n.CLI(soon(t), "tenant", "freeze", "red"); r.Code != 0 {
			t.Fatalf("tenant freeze exits with %d: %s", r.Code, r.Err)
		}
	}
	to, from := renamed, "red"
	kills := 0
	for _, point := range []string{"rename.*", "store.*", "engine.*"} {
		for k, died := 1, true; died; k += enumeration.Stride(3) {
			where := fmt.Sprintf("%s, kill %d", point, k)
			before := status(t, n).Node.Generation
			n.StopDaemon()
			n.Env = []string{fmt.Sprintf("GPUSHARE_FAULT=%s:kill@%d", point, k)}
			if err := n.StartDaemon(soon(t)); err == nil {
				_, done, err := applyOn(soon(t), n, to)
				if died = !done; died && !ended(n) {
					t.Fatalf("%s: the apply failed and the daemon runs: %v\n%s", where, err, daemonLog(n))
				}
			}
			if died {
				awaitKill(t, n)
				kills++
			}
			n.StopDaemon()
			n.Env = nil
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatalf("%s: the daemon does not start again: %v", where, err)
			}
			want := from
			if s := awaitChange(t, n); s.Node.Generation > before {
				want = other(from)
			}
			checkNames(t, n, where, id, want, pid, frozen)
			if r := n.CLIIn(soon(t), to, "apply", "-f", "-"); r.Code != 0 {
				t.Fatalf("%s: the second apply exits with %d: %s%s\n%s", where, r.Code, r.Out, r.Err, daemonLog(n))
			}
			checkNames(t, n, where+", after a second apply", id, other(from), pid, frozen)
			if r := n.CLIIn(soon(t), to, "apply", "-f", "-"); !strings.Contains(r.Out, "no changes") {
				t.Errorf("%s: a third apply is not without changes: %s%s", where, r.Out, r.Err)
			}
			if t.Failed() {
				t.Fatal(daemonLog(n))
			}
			from = other(from)
			to = map[string]string{"red": renamed, "crimson": renamedBack}[from]
		}
	}
	if kills < 3 {
		t.Errorf("%d kills happened", kills)
	}
	t.Logf("%d kills", kills)
}

// renamedBack is named as a change from renamed.
var renamedBack = strings.NewReplacer(
	"crimson, renamed_from: red", "red, renamed_from: crimson", "slot, renamed_from: part", "part, renamed_from: slot",
).Replace(renamed)

// other is the other name of the tenant.
func other(name string) string {
	if name == "red" {
		return "crimson"
	}
	return "red"
}

// checkNames checks that a lease runs as before, and that it and the freeze are of a tenant.
func checkNames(t *testing.T, n *harness.Node, where, id, tenant string, pid int, frozen bool) {
	t.Helper()
	if l := leaseNow(t, n, id); l.Tenant != tenant || l.PID != pid || l.State != api.LeaseRunning {
		t.Errorf("%s: the lease is of %s, %s with pid %d, want %s with pid %d", where, l.Tenant, l.State, l.PID, tenant, pid)
	}
	for _, one := range status(t, n).Tenants {
		if (one.Frozen != nil) != (frozen && one.Name == tenant) {
			t.Errorf("%s: tenant %s is frozen: %v, want that of %s: %v", where, one.Name, one.Frozen, tenant, frozen)
		}
	}
}
