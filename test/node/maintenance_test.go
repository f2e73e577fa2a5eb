package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// upgraded is a node with instances, MPS and a grant of each.
const upgraded = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [4g.20gb, 2g.10gb]}}
  - {select: {index: 2}, mode: mps}
tenants:
  - name: red
    grants:
      - {name: cut, mig: 4g.20gb}
      - {name: join, mps: {share: 30%, gpu_memory: 8GiB}}
`

// driverClients are the processes that have initialised the library, as the virtual node counts them.
func driverClients(t *testing.T, n *harness.Node) []int {
	t.Helper()
	var s struct {
		Clients []int `json:"clients"`
	}
	if err := n.Ctl(soon(t), &s, "status"); err != nil {
		t.Fatal(err)
	}
	return s.Clients
}

// maintenance is what the daemon says of a maintenance.
func maintenance(t *testing.T, n *harness.Node) *api.MaintenanceResult {
	t.Helper()
	c := n.Client()
	defer c.Close()
	r, err := c.Maintenance(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// conditionKinds are the kinds of the conditions of a status.
func conditionKinds(s *api.Status) map[string]bool {
	out := map[string]bool{}
	for i := range s.Node.Conditions {
		out[s.Node.Conditions[i].Kind] = true
	}
	return out
}

// A driver is upgraded: the lease is waited for, MPS and the worker end, the process that has device nodes open is named, the
// modules can be unloaded, and after the end of the maintenance everything is as before, with the other driver.
func TestDriverUpgrade(t *testing.T) {
	n := patient(t, quick)
	apply(t, n, upgraded)
	awaitStatus(t, n, "MPS does not run", func(s *api.Status) bool { return s.GPUs[2].MPS != nil && s.GPUs[2].MPS.State == "running" })
	was, had := truth(t, n), conditionKinds(status(t, n)) // Without root, some limits are not enforced.
	order := func(words ...string) error { return n.Ctl(soon(t), nil, words...) }
	exits := func(code int, says string, args ...string) harness.Result {
		t.Helper()
		r := n.CLI(soon(t), args...)
		if r.Code != code || !strings.Contains(r.Out+r.Err, says) {
			t.Errorf("'gpushare %s' exits with %d and not with %d and %q:\n%s%s", strings.Join(args, " "), r.Code, code, says, r.Out, r.Err)
		}
		return r
	}
	job, id := begin(t, n, "red", "join", "sleep 1000")
	defer job.Kill()

	exits(
		api.ExitDegraded, "the driver is not parked yet: 1 lease left: "+id, "maintenance", "on", "--driver", "--reason",
		"driver 580.105.08",
	)
	exits(125, "the node is in maintenance: ", "run", "-q", "-t", "red", "--grant", "cut", "--", "true")
	if r := n.CLIIn(soon(t), upgraded, "apply", "-f", "-"); r.Code != api.ExitConflict ||
		!strings.Contains(r.Err, "its driver is being replaced") {
		t.Errorf("an apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if err := order("driver-unload"); err == nil {
		t.Error("the driver can be unloaded while it is used")
	}
	uid, unused := uint32(65534), "the driver is parked: nothing uses it"
	if os.Geteuid() != 0 {
		uid = uint32(os.Geteuid())
	}
	if !readsEveryProcess(t) {
		unused = "the driver is parked: no user of it was found, but not every process could be read"
	}
	user := watch(t, n, uid, "nvidia1")
	go job.Stop()
	r := exits(0, "1 process still uses it", "maintenance", "on", "--driver", "--wait", "20s")
	for _, text := range []string{fmt.Sprint(user.n), "sleep", "nvidia1"} {
		if !strings.Contains(r.Out, text) {
			t.Errorf("the answer does not have %q:\n%s", text, r.Out)
		}
	}
	user.kill()
	exits(0, unused, "maintenance")
	if m := maintenance(t, n); !m.Maintenance.Parked || len(m.DriverUsers) > 0 || m.Maintenance.DriverVersion == "" {
		t.Errorf("the maintenance is %+v", m)
	}
	if c := driverClients(t, n); len(c) > 0 {
		t.Errorf("processes %v use the driver", c)
	}

	parked := func(when string) {
		t.Helper()
		if err := n.Client().Reload(soon(t)); err != nil {
			t.Fatal(err)
		}
		s := status(t, n)
		kinds := conditionKinds(s)
		delete(kinds, "maintenance")
		maps.DeleteFunc(kinds, func(kind string, _ bool) bool { return had[kind] })
		if len(kinds) > 0 || !conditionKinds(s)["maintenance"] || s.Node.Maintenance == nil {
			t.Errorf("%s the conditions are %+v", when, s.Node.Conditions)
		}
		exits(0, "the node is in maintenance", "doctor")
		if c := driverClients(t, n); len(c) > 0 {
			t.Errorf("%s processes %v use the driver", when, c)
		}
	}
	parked("with the old driver")
	n.StopDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	parked("after a restart of the daemon")
	if err := order("driver-unload"); err != nil {
		t.Fatal(err)
	}
	parked("without a driver")
	exits(api.ExitUnreachable, "cannot end the maintenance", "maintenance", "off")
	parked("after an end that was refused")
	for _, words := range [][]string{{"driver-install", "580.105.08"}, {"driver-load"}} {
		if err := order(words...); err != nil {
			t.Fatal(err)
		}
	}
	parked("with the new driver")

	exits(0, "the driver is 580.105.08, and was 580.", "maintenance", "off")
	err := harness.Await(
		soon(t), 20*time.Millisecond, "the layout is not restored", func() (bool, error) { return truth(t, n) == was, nil },
	)
	if err != nil {
		t.Fatalf("%v:\n got %s\nwant %s\n%s", err, truth(t, n), was, daemonLog(n))
	}
	awaitChange(t, n)
	s := awaitStatus(
		t, n, "MPS does not run again", func(s *api.Status) bool { return s.GPUs[2].MPS != nil && s.GPUs[2].MPS.State == "running" },
	)
	if s.Node.Maintenance != nil || s.Node.Driver != "580.105.08" {
		t.Errorf("at the end the node is %+v", s.Node)
	}
	explained(t, s, "at the end")
	for _, grant := range []string{"cut", "join"} {
		exits(0, "", "run", "-q", "-t", "red", "--grant", grant, "--", "true")
	}
	before := writes(t, n)
	apply(t, n, upgraded)
	if now := writes(t, n); now != before {
		t.Errorf("the same spec makes %d writes", now-before)
	}
}

// A maintenance that the driver does not take part in leaves everything as it is, and lasts until its end.
func TestMaintenanceRefusesLeases(t *testing.T) {
	n := patient(t, quick)
	apply(t, n, small)
	before := writes(t, n)
	if r := n.CLI(soon(t), "maintenance", "on", "--reason", "its fans"); r.Code != 0 {
		t.Fatalf("it exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "true"); r.Code != 125 ||
		!strings.Contains(r.Err, "(its fans)") {
		t.Errorf("a run exits with %d: %s", r.Code, r.Err)
	}
	waiting, err := n.Run("-q", "--wait", "-t", "red", "--grant", "cut", "--", "echo", "placed")
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Kill()
	awaitStatus(t, n, "no request waits", func(s *api.Status) bool {
		return len(s.Leases) == 1 && s.Leases[0].State == "queued" && strings.Contains(s.Leases[0].Waiting, "the node is in maintenance")
	})
	if r := n.CLI(soon(t), "maintenance", "off"); r.Code != 0 {
		t.Fatalf("off exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if err := waiting.AwaitLine(soon(t), "placed"); err != nil {
		t.Error(err)
	}
	if now := writes(t, n); now != before {
		t.Errorf("there were %d writes", now-before)
	}
}

// readsEveryProcess reports whether this process may read the descriptors of all others: an ordinary user may not, and in a sandbox
// root may not read those of the process that made it.
func readsEveryProcess(t *testing.T) bool {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if _, err := os.Readlink(link); errors.Is(err, fs.ErrPermission) {
			return false
		}
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if _, err := os.ReadDir(filepath.Join(dir, "fd")); errors.Is(err, fs.ErrPermission) {
			return false
		}
	}
	return true
}
