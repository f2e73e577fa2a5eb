package daemon

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/scenarios"
)

// maintained is a node with one GPU in MIG mode and one that is time-sliced, and a grant on each.
const maintained = `version: v1
node: {enforce: on, isolation: {logins: open}}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 3g.20gb]}}
  - {select: {index: 1}, mode: timeslice}
tenants:
  - name: red
    grants:
      - {name: part, mig: 3g.20gb}
      - {name: dev, timeslice: {share: 20%, gpu_memory: 1GiB}, max_leases: 4}
`

// newMaintained is a node with that spec in force.
func newMaintained(t *testing.T) *virtual {
	t.Helper()
	w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "a100-40"})
	w.startDaemon()
	if _, op, refusal := w.apply(maintained, ""); refusal != nil || op == nil || op.State != "done" {
		t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
	}
	return w
}

// maintain sends a request to /v1/maintenance.
func (w *virtual) maintain(target, body string) (r api.MaintenanceResult) {
	w.Helper()
	if refusal := w.do(http.MethodPost, "/v1/maintenance"+target, body, &r); refusal != nil {
		w.Fatal(refusal)
	}
	return r
}

// place asks for a lease without waiting, and returns why there is none.
func (w *virtual) place() (k *lease.Ticket, why string) {
	w.Helper()
	k, err := w.table.Submit(lease.Request{Tenant: "red", Admin: true, Kind: "timeslice"})
	if err != nil {
		return nil, err.Error()
	}
	return k, ""
}

// conditionKinds are the kinds of all conditions, without what this host cannot enforce: it freezes nothing.
func (w *virtual) conditionKinds() (out []string) {
	w.Helper()
	for _, c := range w.statusNow().Node.Conditions {
		if c.Kind != "not-enforced" {
			out = append(out, c.Kind)
		}
	}
	return out
}

// In a maintenance no lease starts, over an apply, a restart and a boot, and what runs goes on. A request that waits is placed at
// its end.
func TestMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMaintained(t)
		running, why := w.place()
		if why != "" {
			t.Fatal(why)
		}
		for _, bad := range []string{`{"reason":"a\nb"}`, `{"drivers":true}`} {
			if refusal := w.do(http.MethodPost, "/v1/maintenance", bad, nil); refusal == nil || refusal.Kind != api.KindInvalid {
				t.Errorf("%s is answered with %v", bad, refusal)
			}
		}
		first := w.maintain("", `{"reason":"its fans"}`)
		if !first.Changed || first.Maintenance == nil || first.Maintenance.Reason != "its fans" ||
			!slices.Equal(first.Leases, []string{running.ID()}) {
			t.Errorf("the answer is %+v", first)
		}
		if again := w.maintain("", "{}"); again.Changed || again.Maintenance.Reason != "its fans" ||
			!again.Maintenance.Since.Equal(first.Maintenance.Since) {
			t.Errorf("the second answer is %+v", again)
		}
		wait := time.Hour
		waiting, err := w.table.Submit(lease.Request{Tenant: "red", Admin: true, Kind: "timeslice", Wait: &wait})
		if err != nil {
			t.Fatal(err)
		}
		closed := func(when string) {
			t.Helper()
			if _, why := w.place(); !strings.Contains(why, "the node is in maintenance: ") ||
				!strings.Contains(
					why,
					first.Maintenance.By+" closed it to new leases at "+first.Maintenance.Since.Local().Format(time.DateTime)+" ",
				) ||
				!strings.Contains(why, "(its fans)") {
				t.Errorf("%s a request is answered with %q", when, why)
			}
			if kinds := w.conditionKinds(); !slices.Equal(kinds, []string{"maintenance"}) {
				t.Errorf("%s the conditions are %q", when, kinds)
			}
			if m := w.statusNow().Node.Maintenance; m == nil || m.Reason != "its fans" || m.Driver {
				t.Errorf("%s the status has %+v", when, m)
			}
			w.doctorWarns("the node is in maintenance")
		}
		closed("at once")
		if _, ok := w.table.Get(waiting.ID()); ok {
			t.Error("the request that waits is placed")
		}
		if _, op, refusal := w.apply(strings.Replace(maintained, "20%", "25%", 1), ""); refusal != nil || op != nil && op.State != "done" {
			t.Fatalf("an apply: %v, %+v", refusal, op)
		}
		closed("after an apply")
		if l, ok := w.table.Get(running.ID()); !ok || len(l.Place.GPUs) != 1 {
			t.Errorf("the lease that ran is %+v", l)
		}
		w.end()
		w.startDaemon()
		closed("after a restart")
		w.reboot()
		w.waitIdle(nil)
		closed("after a boot")
		if names := w.namesOf(0); len(names) != 2 {
			t.Errorf("after a boot the layout is %q", names)
		}
		wait = time.Hour
		if waiting, err = w.table.Submit(lease.Request{Tenant: "red", Admin: true, Kind: "timeslice", Wait: &wait}); err != nil {
			t.Fatal(err)
		}
		for _, changed := range []bool{true, false} {
			if r := w.maintain("/off", ""); r.Changed != changed || r.Maintenance != nil || r.Replaced != nil {
				t.Errorf("off: %+v", r)
			}
		}
		if l, ok := w.table.Get(waiting.ID()); !ok || len(l.Place.GPUs) != 1 {
			t.Errorf("the request that waited is %+v", l)
		}
		if _, why := w.place(); why != "" || len(w.conditionKinds()) > 0 {
			t.Errorf("at the end: %q, %q", why, w.conditionKinds())
		}
	})
}

// doctorWarns expects a warning with this text, and no failure.
func (w *virtual) doctorWarns(text string) {
	w.Helper()
	var d api.Doctor
	if refusal := w.do(http.MethodGet, "/v1/doctor", "", &d); refusal != nil {
		w.Fatal(refusal)
	}
	if !slices.ContainsFunc(
		d.Checks, func(c api.Check) bool { return c.Result == "warn" && strings.Contains(c.Message, text) && c.Hint != "" },
	) {
		w.Errorf("the doctor does not warn of %q: %+v", text, d.Checks)
	}
	if i := slices.IndexFunc(d.Checks, func(c api.Check) bool { return c.Result == "fail" }); i >= 0 {
		w.Errorf("the doctor fails: %+v", d.Checks[i])
	}
}

// For another driver nothing of gpushare uses the old one: when the last lease has ended the worker ends, no worker is started
// over a restart and a boot, nothing is written and no alarm is raised. At the end the layouts are there again.
func TestMaintenanceOfTheDriver(t *testing.T) {
	for _, c := range []struct {
		name    string
		reloads bool // the driver was loaded again, so the layouts are restored
		between func(*virtual)
	}{
		{"the driver is loaded again", true, func(w *virtual) {
			if err := w.node.ReloadDriver(false); err != nil {
				w.Fatal(err)
			}
			w.writeHost()
		}},
		{"the daemon is restarted meanwhile", true, func(w *virtual) {
			w.end()
			w.startDaemon()
			if err := w.node.ReloadDriver(false); err != nil {
				w.Fatal(err)
			}
			w.writeHost()
		}},
		{"the daemon is killed meanwhile", false, func(w *virtual) { w.kill(); w.startDaemon() }},
		{"the host is booted meanwhile", true, (*virtual).reboot},
		{"nothing is done", false, func(*virtual) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMaintained(t)
				layout := w.layoutOf(0)
				running, why := w.place()
				if why != "" {
					t.Fatal(why)
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go w.maintenance.Run(ctx)
				r := w.maintain("", `{"driver":true}`)
				if !r.Changed || r.Maintenance.Parked || r.Waiting != "1 lease left" || w.driver.Status().Parked {
					t.Fatalf("with a lease the answer is %+v", r)
				}
				if _, _, refusal := w.apply(
					strings.Replace(maintained, "20%", "25%", 1), "",
				); refusal == nil || refusal.Kind != api.KindConflict ||
					!strings.Contains(refusal.Message, "the node is in maintenance") {
					t.Errorf("an apply is answered with %v", refusal)
				}
				if err := w.table.Ended(t.Context(), running.ID(), "done"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				var now api.MaintenanceResult
				if refusal := w.do(
					http.MethodGet, "/v1/maintenance", "", &now,
				); refusal != nil || !now.Maintenance.Parked || now.Waiting != "" ||
					now.Maintenance.DriverVersion != virtualDriver {
					t.Fatalf("when the lease has ended: %v, %+v\n%s", refusal, now.Maintenance, w.log)
				}
				stop()
				writes := w.node.Counters()
				parked := func(when string) {
					t.Helper()
					w.waitIdle(nil)
					if !w.driver.Status().Parked {
						t.Errorf("%s there is a worker", when)
					}
					if kinds := w.conditionKinds(); !slices.Equal(kinds, []string{"maintenance"}) {
						t.Errorf("%s the conditions are %+v", when, w.statusNow().Node.Conditions)
					}
					for _, g := range w.statusNow().GPUs {
						if g.State != "parked" {
							t.Errorf("%s GPU %d is %s", when, g.Index, g.State)
						}
					}
					if n := w.node.Counters(); n.Writes != writes.Writes {
						t.Errorf("%s there are %d writes", when, n.Writes-writes.Writes)
					}
					w.doctorWarns("the node is in maintenance")
					if _, why := w.place(); !strings.Contains(why, "the node is in maintenance") {
						t.Errorf("%s a request is answered with %q", when, why)
					}
				}
				parked("at once")
				if _, _, refusal := w.apply(maintained, ""); refusal == nil || refusal.Kind != api.KindConflict {
					t.Errorf("an apply is answered with %v", refusal)
				}
				c.between(w)
				parked("after that")
				off := w.maintain("/off", "")
				if off.Maintenance != nil || off.Replaced == nil || off.Replaced.Before != virtualDriver ||
					off.Replaced.After != virtualDriver ||
					len(off.Replaced.Missing)+len(off.Replaced.Added) > 0 {
					t.Errorf("off: %+v", off)
				}
				if (off.Operation != "") != c.reloads {
					t.Errorf("the layouts are restored by %q", off.Operation)
				}
				w.waitIdle(nil)
				if is := w.layoutOf(0); is != layout {
					t.Errorf("the layout is %q, and was %q", is, layout)
				}
				if kinds := w.conditionKinds(); len(kinds) > 0 || len(w.violations) > 0 {
					t.Errorf("at the end: %q, %q", kinds, w.violations)
				}
				if _, why := w.place(); why != "" {
					t.Errorf("at the end a request is answered with %q", why)
				}
			})
		})
	}
}

// What keeps the driver from being parked may end without a sign: a client of MPS that is in no lease. It is tried again, also if the loop
// had nothing to do for an hour when the maintenance began.
func TestAParkThatWaitsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := (&leaving{spec: shared}).stage(t)
		clients := func(pids ...int) {
			m := w.observer.MPS.(*mpsInMemory)
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, s := range m.running {
				s.Clients = pids
			}
		}
		clients(1 << 22)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go w.maintenance.Run(ctx)
		synctest.Wait()
		if r := w.maintain("", `{"driver":true}`); r.Maintenance.Parked || !strings.Contains(r.Waiting, "has clients in no lease") {
			t.Fatalf("with a client the answer is %+v", r)
		}
		clients()
		time.Sleep(time.Minute)
		synctest.Wait()
		if !w.driver.Status().Parked {
			t.Errorf("a minute after the client has ended the driver is not parked")
		}
	})
}
