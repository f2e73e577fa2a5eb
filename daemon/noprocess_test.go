package daemon

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// Memory of an instance that is used and in no process is a condition that names the only lease on the instance; without one no lease
// gets the instance, also while another change is open, until what the condition names has freed it.
func TestMemoryInNoProcessOfAnInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMaintained(t)
		condition := func() (out []api.Condition) {
			for range 2 { // What counts is in two observations.
				w.waitAnother()
			}
			for _, c := range w.statusNow().Node.Conditions {
				if c.Kind == "memory-in-no-process" {
					out = append(out, c)
				}
			}
			return out
		}
		request := func() (*lease.Ticket, string) {
			k, err := w.table.Submit(lease.Request{Tenant: "red", Admin: true, Kind: "mig:3g.20gb"})
			if err != nil {
				return nil, err.Error()
			}
			return k, ""
		}
		unfreed := func(start, mib string) {
			if err := w.node.SetSensor("0", "unfreed-memory", []string{mib, start}); err != nil {
				t.Fatal(err)
			}
		}
		k, why := request()
		if why != "" {
			t.Fatal(why)
		}
		l, _ := w.table.Get(k.ID())
		start := map[uint32]string{0: "0", 4: "4"}[l.Place.Instance.Start]
		unfreed(start, "5120")
		of := condition()
		if len(of) != 1 || !strings.Contains(of[0].Message, "3g.20gb at "+start+" on GPU 0") ||
			!strings.Contains(of[0].Message, "5 GiB of its memory are used") ||
			!strings.Contains(of[0].Message, k.ID()+" is the only lease on it") ||
			of[0].Tenant != "red" {
			t.Fatalf("with the lease the conditions are %+v", of)
		}
		if err := w.table.Ended(t.Context(), k.ID(), "its end"); err != nil { // What the hint does.
			t.Fatal(err)
		}
		of = condition()
		if len(of) != 1 || !strings.Contains(of[0].Message, "no lease has the instance") ||
			!strings.Contains(of[0].Message, "New leases do not get the instance until it is free") ||
			!strings.Contains(
				of[0].Hint,
				"'gpushare maintenance on --driver --wait 1h'",
			) || !strings.Contains(of[0].Hint, "nvidia-smi --gpu-reset -i 0") {
			t.Fatalf("without a lease the conditions are %+v", of)
		}
		unfreed(map[string]string{"0": "4", "4": "0"}[start], "2048")
		if of = condition(); len(of) != 2 {
			t.Fatalf("the conditions are %+v", of)
		}
		if _, why := request(); !strings.Contains(why, "in no process") {
			t.Errorf("a lease gets an instance whose memory is in use: %q", why)
		}
		// What the hint says, to its end.
		w.inMaintenance(func() { must(t, w.node.ResetGPU("0", os.Getpid())) })
		w.waitIdle(nil)
		if of = condition(); len(of) != 0 {
			t.Errorf("after the reset the conditions are %+v", of)
		}
		if _, why := request(); why != "" {
			t.Errorf("after the reset there is no place: %s %+v", why, w.statusNow().Node.Conditions)
		}
	})
}
