package status

import (
	"context"
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
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/observe"
)

// GetDoctor runs the checks. Each says what it found and, unless all is well, what to do.
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
	if node.DriverErr != nil {
		e := report.DriverError(node.DriverErr)
		fail("driver", e.Message, e.Hint)
	} else {
		ok("driver", fmt.Sprintf("version %s, NVML %s from %s, %d GPUs", node.Driver.DriverVersion, node.Driver.LibraryVersion, node.Driver.Library, len(node.GPUs)))
		if len(node.GPUs) == 0 {
			warn("gpus", "the driver sees no GPUs", "'lspci -d 10de:' shows what is plugged in; 'dmesg' why the driver does not take it")
		}
	}
	if len(node.Driver.Missing) > 0 {
		warn("library", "this driver lacks: "+strings.Join(node.Driver.Missing, ", "), "what needs them works in a weaker way, or not; a newer driver has them")
	}
	v.checkAdapter(ok, warn)
	if i := slices.IndexFunc(node.LoginFilters, func(g devices.State) bool { return g.Cgroup == v.Logins.Logins }); i >= 0 && v.State.Desired().Guarding() {
		ok("logins", "kept from managed GPUs by a guard on "+v.Logins.Logins)
	}
	if w := v.Driver.Status(); w.Stuck || w.Failure != "" {
		fail("worker", "the NVML worker does not run: "+w.Failure, "see the journal of gpushared; 'gpushare gpu retry' tries again")
	} else {
		ok("worker", fmt.Sprintf("pid %d", w.PID))
	}
	if free, err := freeBytes(v.StateDir); err != nil {
		fail("state", err.Error(), "")
	} else if free < 16<<20 {
		warn("state", fmt.Sprintf("%s has only %s left", v.StateDir, api.Bytes(free).Short()), "make room: a full disk refuses every apply")
	} else {
		ok("state", v.StateDir+" is writable by one daemon only, and has room")
	}
	if a, errA := os.Readlink("/proc/self/ns/pid"); errA == nil {
		if b, errB := os.Readlink("/proc/1/ns/pid"); errB == nil && a != b {
			fail("namespace", "the daemon does not run in the host's pid namespace", "the driver tells it other pids than the host's: run it outside of containers")
		}
	}
	other := external.Read(v.HostRoot, v.Host)
	checkExternalSchedulers(&other, v.State.Desired(), node, warn)
	v.checkQuiesce(observeCtx, v.State.Desired(), warn)
	v.checkDrift(warn)
	for _, cond := range v.Conditions.List() {
		if cond.Kind != "driver" {
			warn(cond.Kind, cond.Message, cond.Hint)
		}
	}
	return out
}

// checkAdapter says what holds processes here and what it cannot do.
func (v *Viewer) checkAdapter(ok func(name, message string), warn func(name, message, hint string)) {
	info := v.Port.Info()
	ok("processes", "held by "+devicepolicy.AdapterText(v.Port.Info()))
	deniable := v.Port.Abilities().Migration != nil
	if deniable && v.State.Desired().Denies() {
		ok("migration", "is denied, which costs: "+planner.MigrationCost)
	} else if deniable {
		ok("migration", "processes that leave their lease are ended; node.isolation.migration: deny would keep them inside, and cost: "+planner.MigrationCost)
	}
	if v.State.Desired().Enforcing() {
		return // What is asked for and not enforced is among the conditions.
	}
	if !info.Freeze {
		warn("time shares", "cannot be enforced: nothing can be frozen", "run the daemon as root on a host with cgroup v2")
	} else if err := v.FreezerReady(); err != nil {
		warn("time shares", "nobody is frozen: "+err.Error(), "start gpushare-thaw: 'systemctl start gpushare-thaw'")
	}
	if !info.Devices {
		warn("device walls", "cannot be enforced: "+devicepolicy.WhyNoDeviceRules(info), "a tenant is kept to its GPUs by its environment only; run gpushared as root on a host with cgroup v2")
	}
}

func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("cannot look at %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// checkDrift tells what was changed from outside since the daemon started.
func (v *Viewer) checkDrift(warn func(name, message, hint string)) {
	at, text := v.Managers.Converge.LastDrift()
	if at.IsZero() {
		return
	}
	warn("drift", fmt.Sprintf("%d times something was changed from outside and set again; the last, at %s, wanted → found: %s",
		v.Counters.Drifts.Load(), at.Format(time.DateTime), text), "who wants it otherwise changes the spec; gpushare sets it again each time")
}
