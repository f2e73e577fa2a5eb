package daemon

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/kernellog"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/scenarios"
)

// twoShared is a spec of two time-sliced GPUs with a grant on each of them. health is policy of the node.
func twoShared(health string) string {
	return "version: v1\nnode: {enforce: on, isolation: {logins: open}" + health + "}\n" +
		"gpus: [{select: {all: true}, mode: timeslice}]\n" +
		"tenants:\n  - name: red\n    grants:\n" +
		"      - {name: zero, timeslice: {share: 20%, gpu_memory: 1GiB}, gpus: {index: 0}, max_leases: 9}\n" +
		"      - {name: one, timeslice: {share: 20%, gpu_memory: 1GiB}, gpus: {index: 1}, max_leases: 9}\n"
}

// healthNode is a virtual node whose health is followed as in the daemon.
type healthNode struct {
	*virtual
	stop func()
	log  chan kernellog.Record // a fake of the kernel's log: a wait for a file does not let virtual time pass
}

func newHealthNode(t *testing.T, spec string) *healthNode {
	t.Helper()
	cfg := virtualConfig(t, nil, scenarios.Board{Model: "a100-40"}, scenarios.Board{Model: "a100-40"})
	cfg.DriverVersion = "580.65.06" // Branches up to 565 do not say what a GPU needs.
	w := &healthNode{virtual: newVirtualOf(t, cfg), log: make(chan kernellog.Record)}
	w.startDaemon()
	if _, op, refusal := w.apply(spec, ""); refusal != nil || op != nil && op.State != "done" {
		t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
	}
	w.follow()
	t.Cleanup(func() { w.stop() })
	return w
}

// follow runs the loops that a virtual node does not run by itself.
func (w *healthNode) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	health, driver := w.health, w.fakeWorker.Driver
	health.FollowLog = func(ctx context.Context, f func(kernellog.Record)) error {
		for {
			select {
			case r := <-w.log:
				f(r)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	loops.Go(func() { health.Run(ctx) })
	loops.Go(func() {
		_ = driver.Events(ctx, func(e gpu.Event) { // It ends with ctx.
			if e.Kind == gpu.EventXID {
				health.XID(e)
			}
		})
	})
	w.stop = sync.OnceFunc(func() { cancel(); loops.Wait() })
	synctest.Wait()
}

// restarted restarts the daemon by one of the ways to do so.
func (w *healthNode) restarted(by func()) {
	w.stop()
	by()
	w.follow()
	w.waitReadings()
}

// waitReadings waits for reports and readings, and makes two passes.
func (w *healthNode) waitReadings() {
	w.Helper()
	time.Sleep(12 * time.Second) // in virtual time: readings are taken every 10 s
	synctest.Wait()
	w.waitIdle(nil)
	time.Sleep(12 * time.Second)
	synctest.Wait()
	w.waitIdle(nil)
}

// xid reports an XID of a GPU.
func (w *healthNode) xid(id string, number, pid int) {
	w.Helper()
	if err := w.node.XID(id, number, pid, "python"); err != nil {
		w.Fatal(err)
	}
	w.waitReadings()
}

// submitted reports whether a lease of a grant gets a place now.
func (w *healthNode) submitted(grant string) bool {
	w.Helper()
	k, err := w.table.Submit(lease.Request{Tenant: "red", Grant: grant, Admin: true})
	if err != nil {
		return false
	}
	synctest.Wait()
	l, placed := w.table.Get(k.ID())
	return placed && len(l.Place.GPUs) == 1
}

// is checks the state of a GPU and whether it takes a lease.
func (w *healthNode) is(i int, when, state, health, reason string) {
	w.Helper()
	g := w.statusNow().GPUs[i]
	if g.State != state || g.Health == nil || g.Health.State != health || !strings.Contains(g.Health.Reason, reason) {
		w.Errorf("%s GPU %d is %s: %s, and %+v; want %s, %s: %s", when, i, g.State, g.Reason, g.Health, state, health, reason)
	}
	if takes := w.submitted([]string{"zero", "one"}[i]); takes != (state == "ok") {
		w.Errorf("%s GPU %d takes a lease: %t", when, i, takes)
	}
}

func (w *healthNode) retry(id string) *api.Error {
	w.Helper()
	var op api.Operation
	refusal := w.do(http.MethodPost, "/v1/gpus/"+id+"/retry", "", &op)
	w.waitReadings()
	return refusal
}

// A GPU whose hardware has trouble takes no new lease, also after a restart of the daemon, and the others do. After a boot it is
// tested, and takes leases again.
func TestHardwareTroubleClosesOneGPU(t *testing.T) {
	for number, helps := range map[int]string{79: "boot the node", 95: "reset the GPU", 48: "reset the GPU", 119: "reset the GPU"} {
		t.Run(helps, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHealthNode(t, twoShared(""))
				w.is(0, "at first", "ok", api.HealthOK, "")
				w.xid("0", number, 0)
				state := "unhealthy"
				if number == 79 {
					state = "lost"
				}
				w.is(0, "after the XID", state, api.HealthClosed, "XID ")
				w.is(1, "after the XID of the other", "ok", api.HealthOK, "")
				c := w.conditionOf("health", w.ids[0])
				if !strings.Contains(c.Message, "GPU 0 takes no new lease: XID ") || !strings.Contains(c.Hint, helps) ||
					!strings.Contains(c.Hint, "'gpushare gpu retry 0'") {
					t.Errorf("the condition is %+v", c)
				}
				if number == 79 {
					w.reportsOnce(0, "health", "gpushare gpu retry 0")
				}
				since := w.statusNow().GPUs[0].Health.Since
				w.restarted(func() { w.end(); w.startDaemon() })
				w.is(0, "after a restart", state, api.HealthClosed, "XID ")
				if now := w.statusNow().GPUs[0].Health.Since; !now.Equal(*since) {
					t.Errorf("it is closed since %s, and was since %s", now, since)
				}
				w.restarted(w.reboot)
				w.is(0, "after a boot", "ok", api.HealthOK, "")
				if c := w.conditionOf("health", w.ids[0]); c.Message != "" {
					t.Errorf("after a boot there is the condition %+v", c)
				}
			})
		})
	}
}

// conditionOf is a condition of a GPU; the zero value if there is none.
func (w *healthNode) conditionOf(kind string, id gpu.UUID) api.Condition {
	for _, c := range w.statusNow().Node.Conditions {
		if c.Kind == kind && c.GPU == string(id) {
			return c
		}
	}
	return api.Condition{}
}

// An administrator tries a closed GPU again after its reset.
func TestRetryOpensAClosedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHealthNode(t, twoShared(""))
		w.xid("0", 95, 0)
		w.is(0, "after the XID", "unhealthy", api.HealthClosed, "XID 95")
		if err := w.node.ResetGPU("0", 1000); err != nil {
			t.Fatal(err)
		}
		if refusal := w.retry("0"); refusal != nil {
			t.Fatal(refusal)
		}
		w.is(0, "after retry", "ok", api.HealthOK, "")

		w.xid("1", 79, 0)
		if refusal := w.retry("1"); refusal == nil || !strings.Contains(refusal.Message, "the GPU is lost") {
			t.Errorf("retry of a lost GPU: %v", refusal)
		}
		w.is(1, "after retry of a lost GPU", "lost", api.HealthClosed, "XID 79")
	})
}

// sensor sets a sensor of a GPU, and waits until it was read.
func (w *healthNode) sensor(id, name string, values ...string) {
	w.Helper()
	if err := w.node.SetSensor(id, name, values); err != nil {
		w.Fatal(err)
	}
	w.waitReadings()
}

// A GPU that was reset takes leases again by itself, and one that requests something for a reset takes none.
func TestReadingsCloseAndOpenAGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHealthNode(t, twoShared(`, health: {temperature: {warn: 80C}}`))
		w.xid("0", 95, 0)
		w.is(0, "after the XID", "unhealthy", api.HealthClosed, "XID 95")
		w.restarted(func() { w.end(); w.startDaemon() })
		if err := w.node.ResetGPU("0", 1000); err != nil {
			t.Fatal(err)
		}
		w.waitReadings()
		w.is(0, "after a reset", "ok", api.HealthOK, "")

		w.sensor("1", "recovery", "drain-and-reset")
		w.is(
			1, "while the driver requests something", "unhealthy", api.HealthClosed,
			"the driver says that it needs a reset after its leases have ended",
		)
		w.is(0, "while the driver requests something for the other", "ok", api.HealthOK, "")
		w.sensor("1", "recovery", "none")
		w.is(1, "when the driver no longer requests something", "ok", api.HealthOK, "")

		for _, c := range []struct {
			degrees string
			warns   bool
		}{{"79", false}, {"81", true}, {"77", true}, {"75", false}, {"77", false}} {
			w.sensor("1", "temperature", c.degrees)
			health, reason := api.HealthOK, ""
			if c.warns {
				health, reason = api.HealthWarning, "its temperature is "+c.degrees+" °C, and the spec warns from 80 °C"
			}
			w.is(1, "at "+c.degrees+" °C", "ok", health, reason)
			if has := w.conditionOf("health", w.ids[1]).Message != ""; has != c.warns {
				t.Errorf("at %s °C there is a condition: %t", c.degrees, has)
			}
		}
		if r := w.statusNow().GPUs[1].Health.Readings; r == nil || r.Temperature == nil || *r.Temperature != 77 ||
			time.Since(r.ReadAt) > 11*time.Second {
			t.Errorf("the readings are %+v", r)
		}
	})
}

// What the spec says of an XID holds, and an error of a program closes nothing.
func TestPolicyOfXIDs(t *testing.T) {
	for name, c := range map[string]struct {
		health string
		xid    int
		state  string
	}{
		"an error of a program":    {"", 31, "ok"},
		"the spec only reports it": {`, health: {xid: {"119": report, "154": report}}`, 119, "ok"},
		"the spec closes":          {`, health: {xid: {"63": close}}`, 63, "unhealthy"},
		"an XID that is a notice":  {"", 63, "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHealthNode(t, twoShared(c.health))
				w.xid("0", c.xid, 0)
				health := map[string]string{"ok": api.HealthOK, "unhealthy": api.HealthClosed}[c.state]
				w.is(0, "after the XID", c.state, health, "")
				found := false
				for _, x := range w.XIDs.List() {
					found = found || x.GPU == w.ids[0] && x.XID == uint64(c.xid) && x.Count == 1
				}
				if !found {
					t.Errorf("the XIDs are %+v", w.XIDs.List())
				}
			})
		})
	}
}

// Converging twice writes nothing, also with a closed GPU.
func TestAClosedGPUIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHealthNode(t, twoShared(""))
		w.xid("0", 95, 0)
		was := w.state.Stored()
		w.waitReadings()
		w.xid("0", 95, 0)
		if now := w.state.Stored(); now != was {
			t.Errorf("the state was written again: %+v, and was %+v", now.Closures, was.Closures)
		}
	})
}
