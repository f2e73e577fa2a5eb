package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/quota"
)

// GetDoctor runs the checks. Each returns what it found and, if there is a problem, a hint.
func (v *Viewer) GetDoctor(c *server.Call) error {
	out := api.Doctor{SchemaVersion: 1, Checks: v.checks(c.Ctx())}
	return c.Reply(http.StatusOK, out)
}

func (v *Viewer) checks(ctx context.Context) []api.Check {
	var out []api.Check
	ok := func(name, message string) { out = append(out, api.Check{Name: name, Result: "ok", Message: message}) }
	warn := func(name, message, hint string) {
		out = append(out, api.Check{Name: name, Result: "warn", Message: message, Hint: hint})
	}
	fail := func(name, message, hint string) {
		out = append(out, api.Check{Name: name, Result: "fail", Message: message, Hint: hint})
	}
	observeCtx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	node := v.Observer.Observe(observeCtx)
	if errors.Is(node.DriverErr, gpu.ErrParked) {
		ok("driver", "is not used: the node is in maintenance")
	} else if node.DriverErr != nil {
		e := report.DriverError(node.DriverErr)
		fail("driver", e.Message, e.Hint)
	} else {
		ok(
			"driver",
			fmt.Sprintf(
				"version %s, NVML %s from %s, %d GPUs", node.Driver.DriverVersion, node.Driver.LibraryVersion, node.Driver.Library,
				len(node.GPUs),
			),
		)
		if len(node.GPUs) == 0 {
			warn("gpus", "the driver finds no GPUs", "'lspci -d 10de:' lists the devices; 'dmesg' shows why the driver does not use them")
		}
	}
	if len(node.Driver.Missing) > 0 {
		warn(
			"library", "this driver lacks: "+strings.Join(node.Driver.Missing, ", "),
			"features that need them are limited or unavailable; a newer driver has them",
		)
	}
	v.Files.Check(ctx)
	v.checkAdapter(ok, warn)
	v.checkLogins(node, ok, warn)
	v.checkOpen(verdicts{warn, fail})
	out = append(out, v.checkProcesses(node.DriverErr == nil)...)
	if free, err := freeBytes(v.StateDir); err != nil {
		fail("state", err.Error(), "")
	} else if slices.ContainsFunc(v.Conditions.List(), func(c api.Condition) bool { return c.Kind == report.LostFiles }) {
		warn("state", "files of the daemon were removed while it ran", "another check says which")
	} else if free < 16<<20 {
		warn(
			"state", fmt.Sprintf("%s has only %s left", v.StateDir, api.Bytes(free).Short()),
			"free some space: on a full disk every apply is refused",
		)
	} else {
		ok("state", v.StateDir+" is locked by this daemon and has free space")
	}
	if a, errA := os.Readlink("/proc/self/ns/pid"); errA == nil {
		if b, errB := os.Readlink("/proc/1/ns/pid"); errB == nil && a != b {
			fail(
				"namespace", "the daemon does not run in the host's pid namespace",
				"the driver reports pids of another namespace to it: run it outside of a container",
			)
		}
	}
	other := external.Read(v.HostRoot, v.Host)
	checkExternalSchedulers(&other, v.State.Desired(), node, warn)
	checkSlurm(&other, node, ok, warn)
	checkSlurmScripts(v.HostRoot, &other, v.State.Desired(), ok, warn)
	v.checkQuiesce(observeCtx, v.State.Desired(), warn)
	v.checkDrift(warn)
	v.currentStatus() // It brings the conditions up to date.
	v.checkUnattributed(node, warn)
	v.checkObserving(observeCtx, node, ok, warn)
	v.checkHealth(node, ok, warn)
	conditions := v.Managers.Acknowledge.Annotate(v.Conditions.List())
	for i := range conditions {
		switch cond := &conditions[i]; {
		case cond.Kind == "driver": // It is the first check.
		case cond.Kind == report.LostFiles || v.breaksSpec(cond, node):
			fail(cond.Kind, cond.Message, cond.Hint)
		default:
			warn(cond.Kind, cond.Message, cond.Hint)
		}
	}
	return acknowledged(out, conditions)
}

// breaksSpec reports whether a condition is more than a warning: a GPU does not answer or is open although the spec closes it, or files
// are lost.
func (v *Viewer) breaksSpec(cond *api.Condition, node *observe.Node) bool {
	switch cond.Kind {
	case "gpu", report.LostFiles: // A GPU is lost, or does not answer; files of the daemon are lost.
		return true
	case "health": // Where it says that the GPU is lost, no other condition does.
		g, found := node.GPU(gpu.UUID(cond.GPU))
		return found && g.Err != nil && node.DriverErr == nil
	case "login-filter": // Otherwise one is active that the spec does not have.
		return v.State.Desired().FiltersLogins()
	}
	return false
}

// acknowledged passes the checks that found an acknowledged condition, and says who knows of it.
func acknowledged(checks []api.Check, conditions []api.Condition) []api.Check {
	for i := range checks {
		c := &checks[i]
		for j := range conditions {
			k := conditions[j].Acknowledged
			if k == nil || c.Result == "ok" || c.Name != conditions[j].Kind || c.Message != conditions[j].Message {
				continue
			}
			c.Result, c.Hint, c.Acknowledged = "ok", "", k
			break
		}
	}
	return checks
}

// checkProcesses reports the worker and, once it has opened the driver, what the kernel does not enforce for it and for the front.
func (v *Viewer) checkProcesses(opened bool) []api.Check {
	w := v.Driver.Status()
	if !w.Parked && (w.Stuck || w.Failure != "") {
		return []api.Check{
			{
				Name:    "worker",
				Result:  "fail",
				Message: "the NVML worker is not running: " + w.Failure,
				Hint:    "see the journal of gpushared; 'gpushare gpu retry' starts it again",
			},
		}
	}
	out := []api.Check{{Name: "worker", Result: "ok", Message: fmt.Sprintf("pid %d", w.PID)}}
	if w.Parked {
		out[0].Message = "is ended: the node is in maintenance"
	}
	if v.Unconfined == nil {
		return out
	}
	if w.Parked || !opened {
		w.PID = 0
	}
	return append(out, v.Unconfined(w.PID)...)
}

// checkLogins reports the login filters that are active as the spec requests them. Conditions report those that are missing.
func (v *Viewer) checkLogins(node *observe.Node, ok func(name, message string), warn func(name, message, hint string)) {
	want := v.State.Desired()
	filtered := func(cg string) bool {
		return slices.ContainsFunc(node.LoginFilters, func(g devices.LoginFilterState) bool { return g.Cgroup == cg })
	}
	if want.FiltersLogins() && filtered(v.Logins.Logins) {
		ok("logins", "have no access to managed GPUs outside a lease: a login filter is active on "+v.Logins.Logins)
	}
	found, err := v.Logins.Units(want.ClosedUnits())
	if err != nil {
		warn("units", err.Error(), "")
		return
	}
	var closed, skipped []string
	for _, unit := range want.ClosedUnits() {
		if cg, exists := found[unit]; exists && filtered(cg) {
			closed = append(closed, unit)
		} else if !exists {
			skipped = append(skipped, unit)
		}
	}
	if len(closed) > 0 {
		ok("units", "are closed as logins are: a login filter is active on "+strings.Join(closed, ", "))
	}
	if len(skipped) > 0 && v.Logins.Supported {
		ok("units", strings.Join(skipped, ", ")+" of isolation.units: skipped, because no such unit runs on this host")
	}
}

// checkUnattributed reports GPU memory that no process accounts for.
func (v *Viewer) checkUnattributed(node *observe.Node, warn func(name, message, hint string)) {
	now := v.Samples.Overlay(node)
	for i := range now.GPUs {
		g := &now.GPUs[i]
		bytes := g.Unattributed
		if b, ok := quota.Unattributed(&g.Snapshot); ok && bytes == nil && g.Err == nil {
			bytes = &b
		}
		if bytes != nil && *bytes >= quota.UnattributedLarge {
			warn(
				"GPU memory",
				fmt.Sprintf(
					"%s of %s are in no process that the driver lists: managed memory, a process of another pid namespace, or memory that was not freed",
					api.Bytes(*bytes).Short(),
					g.Identity.Name(),
				),
				"'gpushare status --json' lists the processes of the GPU; no lease is stopped because of this memory",
			)
		}
	}
}

// checkAdapter reports the adapter for processes and what it cannot do.
func (v *Viewer) checkAdapter(ok func(name, message string), warn func(name, message, hint string)) {
	info := v.Port.Info()
	ok("processes", "the adapter is "+devicepolicy.AdapterText(v.Port.Info()))
	deniable := v.Port.Abilities().Migration != nil
	if deniable && v.State.Desired().DeniesMigration() {
		ok("migration", "is denied; the cost is: "+state.MigrationCost)
	} else if deniable {
		ok(
			"migration",
			"processes that leave their lease are killed; node.isolation.migration: deny keeps them inside, at this cost: "+state.MigrationCost,
		)
	}
	if v.State.Desired().Enforcing() {
		return // What is requested and not enforced is among the conditions.
	}
	if !info.Freeze {
		warn("time shares", "cannot be enforced: nothing can be frozen", "run the daemon as root on a host with cgroup v2")
	} else if err := v.FreezerReady(); err != nil {
		warn("time shares", "no lease is frozen: "+err.Error(), "systemctl start gpushare-thaw")
	}
	if !info.Devices {
		warn(
			"device rules", "cannot be enforced: "+devicepolicy.WhyNoDeviceRules(info),
			"only its environment limits a tenant to its GPUs; run gpushared as root on a host with cgroup v2",
		)
	}
}

func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("cannot read the free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// checkDrift reports what was changed from outside since the daemon started.
func (v *Viewer) checkDrift(warn func(name, message, hint string)) {
	at, text := v.Managers.Converge.LastDrift()
	if at.IsZero() {
		return
	}
	warn("drift", fmt.Sprintf("%d times a setting was changed from outside and corrected; the last at %s, desired → found: %s",
		v.Counters.Drifts.Load(), at.Format(time.DateTime), text), "to change it for good, change the spec; gpushare corrects it each time")
}
