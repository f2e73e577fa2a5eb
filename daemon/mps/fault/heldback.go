package fault

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mps"
)

const (
	// maxFaults is how many faults within countedFor a tenant may cause in the MPS of one GPU before it gets no new lease there.
	maxFaults  = 3
	countedFor = 10 * time.Minute
)

// countLocked counts the faults that processes of one tenant caused, and holds it back when there are too many.
func (f *Faults) countLocked(on mps.Device, d *device, tenant string, at time.Time) {
	all := slices.DeleteFunc(append(d.caused[tenant], at), func(t time.Time) bool { return at.Sub(t) > countedFor })
	d.caused[tenant] = all
	if len(all) < maxFaults {
		return
	}
	delete(d.caused, tenant) // After 'mps resume' they count from the start.
	err := f.State.Store.Update(func(s *store.State) error {
		where := store.Where{GPU: on.GPU, Instance: on.Instance, Tenant: tenant}
		closing.HeldBack.Close(s, store.Closure{Where: where, Since: at, Faults: len(all)})
		return nil
	})
	if err != nil {
		f.Log.Error("cannot record that a tenant is held back", "gpu", on, "tenant", tenant, "error", err)
		return
	}
	text := fmt.Sprintf(
		"tenant %s gets no new lease of the MPS of %s: its processes caused %d fatal faults in %.0f minutes", tenant, on, len(all),
		countedFor.Minutes(),
	)
	f.Events.Publish(api.Event{Kind: "mps.held-back", GPU: string(on.GPU), Tenant: tenant, Message: text})
	f.Audit("gpushared", "mps-held-back", text)
	f.Wake()
}

// updateConditions reports the tenants that are held back.
func (f *Faults) updateConditions(node *observe.Node) {
	held := closing.HeldBack.In(f.State.Stored())
	out := map[string]api.Condition{}
	for i := range held {
		h := &held[i]
		g, ok := node.GPU(h.GPU)
		if !ok {
			continue
		}
		d := mps.Device{GPU: h.GPU, Instance: h.Instance}
		out[fmt.Sprint(d, h.Tenant)] = api.Condition{
			GPU:    string(h.GPU),
			Tenant: h.Tenant,
			Message: fmt.Sprintf(
				"%s: tenant %s gets no new lease of its MPS: its processes caused %d fatal faults in %.0f minutes, the last at %s",
				planner.DeviceName(g, d), h.Tenant, h.Faults, countedFor.Minutes(), h.Since.UTC().Format(time.RFC3339),
			),
			Hint: fmt.Sprintf("correct its program, then 'gpushare mps resume %s'", planner.MPSArguments(g, d)),
		}
	}
	f.Conditions.Replace("mps-held-back", out)
}
