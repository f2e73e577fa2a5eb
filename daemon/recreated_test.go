package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/scenarios"
)

// recreatedSpec is a GPU whose instances match the grant, with a fixed layout or with instances on demand.
func recreatedSpec(mig string) string {
	return "version: v1\nnode: {enforce: on, isolation: {logins: open}}\ngpus:\n  - {select: {index: 0}, mode: mig, mig: " + mig + "}\n" +
		"tenants:\n  - name: red\n    grants:\n      - {name: half, mig: 3g.20gb, max_leases: 2}\n"
}

// An instance that a change destroys and creates again at its placement has the devices of before. The slice was written by
// the change: what differs in between is no drift.
func TestInstanceCreatedAgainIsNoDrift(t *testing.T) {
	for _, c := range []struct {
		name   string
		spec   string
		change func(t *testing.T, w *virtual)
	}{
		{"a change is undone", recreatedSpec("{layout: [3g.20gb, 3g.20gb]}"), func(t *testing.T, w *virtual) {
			if _, err := w.node.AddFault(gpusim.Fault{Call: "DeviceCreateGpuInstanceWithPlacement", Do: gpusim.FaultFail, Code: gpusim.InsufficientResources}); err != nil {
				t.Fatal(err)
			}
			if _, op, refusal := w.apply(recreatedSpec("{layout: [7g.40gb]}"), ""); refusal != nil || op == nil || op.State != "degraded" {
				t.Fatalf("%v, %+v", refusal, op)
			}
		}},
		{"an instance on demand is removed and created", recreatedSpec("{dynamic: true, keep: 10s}"), func(t *testing.T, w *virtual) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go w.instances.Run(ctx)
			for range 3 {
				k, err := w.table.Submit(lease.Request{Tenant: "red", Admin: true, Kind: "mig:3g.20gb"})
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				w.waitIdle(nil)
				if _, ok := w.table.Get(k.ID()); !ok {
					t.Fatalf("it got no instance: %+v\n%s", w.table.List(), w.log)
				}
				if err := w.table.Ended(t.Context(), k.ID(), "done"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute) // virtual: the instance is removed
				w.waitIdle(nil)
				if n := len(w.truth()[0].Instances); n != 0 {
					t.Fatalf("%d idle instances remain\n%s", n, w.log)
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true})
				w.startDaemon()
				if _, op, refusal := w.apply(c.spec, ""); refusal != nil || op != nil && op.State != "done" {
					t.Fatalf("%v, %+v", refusal, op)
				}
				before := w.node.Counters().Writes
				c.change(t, w)
				if w.node.Counters().Writes == before {
					t.Error("no instance was changed")
				}
				if n := w.Counters.Drifts.Load(); n != 0 {
					at, text := w.converger.LastDrift()
					t.Errorf("%d drifts, the last at %s: %s", n, at, text)
				}
			})
		})
	}
}
