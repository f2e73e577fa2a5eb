package maintenance

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/lease"
)

// Maintenance is what an administrator does to the node as a whole, whatever the spec says.
type Maintenance struct {
	*report.Reporter
	State     *state.State
	Observer  *observe.Observer
	Table     *lease.Table
	Driver    parker
	Changes   changes
	Converger converger
	Users     driverUsers
	UserName  func(uid int) string
	Wake      loop.Wake // a lease has ended

	mu      locks.Mutex[locks.Leaf] // guards waiting
	waiting string                  // why the driver is not parked yet; empty if it is, or if that was not requested
}

// parker ends the NVML worker, and starts one again.
type parker interface {
	Park(ctx context.Context) error
	Unpark()
}

// changes are the changes of the node.
type changes interface {
	// Alone calls f while no other change is planned or open, also in a maintenance.
	Alone(ctx context.Context, f func() error) error
	// Restore begins a change that creates the layouts again that a load of the driver removed, if there are any.
	Restore(node *observe.Node) (compared bool)
}

// converger is the loop that corrects the node.
type converger interface {
	Correct(ctx context.Context) error
	Refresh(ctx context.Context, node *observe.Node)
	CarryOut(ctx context.Context, steps []step.Step) error
}

// driverUsers finds the processes that use the driver.
type driverUsers interface {
	DriverUsers(ctx context.Context) (users []attribution.DriverUser, complete bool)
}

// GetMaintenance shows the maintenance, and what is in its way.
func (m *Maintenance) GetMaintenance(c *server.Call) error {
	return c.Reply(http.StatusOK, m.result(c.Ctx()))
}

// PostOn closes the node to new leases. Those that run are not disturbed. A second request may give another reason, and ask for
// the driver to be parked.
func (m *Maintenance) PostOn(c *server.Call) error {
	q, err := server.Decode[api.MaintenanceRequest](c)
	if err != nil {
		return err
	}
	reason, err := server.Reason("begin a maintenance", q.Reason)
	if err != nil {
		return err
	}
	node := m.Observer.Last()
	next := store.Closure{By: c.Caller.Name, Since: m.Now(), Reason: reason, Maintenance: &store.MaintenanceRecord{
		Driver: q.Driver, Boot: node.Epoch.Boot, DriverVersion: node.Driver.DriverVersion, GPUs: node.Identities(),
	}}
	changed := false
	if _, other := again(m.State.Stored(), next); other { // Else it is the same again, and the driver may be being parked.
		err = m.Changes.Alone(c.Ctx(), func() error {
			ctx, err := server.GoOn(c.Ctx())
			if err != nil {
				return err
			}
			next, changed = again(m.State.Stored(), next)
			return m.begin(ctx, node, &next)
		})
		// What is in the way may end without a sign. Within the change the loop would find that one under way, and wait for it.
		m.Wake.Set()
	}
	if err != nil {
		return err
	}
	c.Note.Text = "no change"
	if changed {
		c.Note.Text = "on"
		if next.Maintenance.Driver {
			c.Note.Text += ", to replace the driver"
		}
		if next.Reason != "" {
			c.Note.Text += ": " + next.Reason
		}
	}
	out := m.result(c.Ctx())
	out.Changed = changed
	return c.Reply(http.StatusOK, out)
}

// again is a request, added to the maintenance that there is: it began when it began, and is not made less. It reports whether that
// changes it.
func again(s *store.State, request store.Closure) (next store.Closure, changed bool) {
	was, driver := closing.InMaintenance(s)
	if was == nil {
		return request, true
	}
	next = *was
	next.Reason = cmp.Or(request.Reason, was.Reason)
	if request.Maintenance.Driver && !driver.Driver {
		parked := driver.Parked
		driver = *request.Maintenance
		driver.Parked = parked
		changed = true
	}
	next.Maintenance = &driver
	return next, changed || next.Reason != was.Reason
}

// begin records a maintenance, and parks the driver at once if that is requested and no lease is in the way.
func (m *Maintenance) begin(ctx context.Context, node *observe.Node, now *store.Closure) error {
	if err := m.record(now); err != nil {
		return err
	}
	m.Events.Publish(api.Event{Kind: "maintenance.on", Message: closing.MaintenanceText(now)})
	m.Converger.Refresh(ctx, node)
	m.advance(ctx)
	return nil
}

// PostOff ends PostOn. Where the driver was parked it must answer first: until then the maintenance lasts.
func (m *Maintenance) PostOff(c *server.Call) error {
	var was *store.Closure
	var replaced *api.ReplacedDriver
	begun := m.Now()
	err := m.Changes.Alone(c.Ctx(), func() error {
		ctx, err := server.GoOn(c.Ctx())
		if err != nil {
			return err
		}
		var driver store.MaintenanceRecord
		if was, driver = closing.InMaintenance(m.State.Stored()); was == nil {
			return nil
		}
		if driver.Driver {
			if replaced, err = m.unpark(ctx, &driver); err != nil {
				return err
			}
		}
		if err := m.record(nil); err != nil {
			return err
		}
		m.Events.Publish(api.Event{Kind: "maintenance.off", Message: c.Caller.Name + " opened the node to new leases"})
		m.Converger.Refresh(ctx, m.Observer.Last())
		return nil
	})
	if err != nil {
		return err
	}
	m.Changes.Restore(m.Observer.Last())
	c.Note.Text = "no change"
	if was != nil {
		c.Note.Text = "off"
	}
	if replaced != nil {
		c.Note.Text += fmt.Sprintf(", driver %s before and %s after", cmp.Or(replaced.Before, "unknown"), replaced.After)
	}
	out := m.result(c.Ctx())
	out.Changed, out.Replaced = was != nil, replaced
	for _, op := range m.Operations.List() { // The loop that observes may have begun it first, and it may have ended.
		if replaced != nil && op.Kind == state.KindRestore && !op.Started.Before(begun) {
			out.Operation = op.ID
		}
	}
	return c.Reply(http.StatusOK, out)
}

// unpark starts a worker with the driver that is loaded now, and corrects what depends on it. After an error the driver is
// parked as before.
func (m *Maintenance) unpark(ctx context.Context, was *store.MaintenanceRecord) (*api.ReplacedDriver, error) {
	m.Driver.Unpark()
	m.Observer.Invalidate()
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	node := m.Observer.Observe(ctx)
	if node.DriverErr != nil && was.Parked {
		if err := m.Driver.Park(ctx); err != nil {
			m.Log.Warn("cannot park the driver again", "error", err)
		}
		m.Observer.Observe(ctx)
		e := report.DriverError(node.DriverErr)
		e.Message, e.Hint = "cannot end the maintenance: "+e.Message, e.Hint+"; then 'gpushare maintenance off'"
		return nil, e
	}
	if err := m.Converger.Correct(ctx); err != nil {
		m.Log.Warn("cannot correct everything after a maintenance", "error", err) // Conditions report what is left.
	}
	if !was.Parked {
		return nil, nil
	}
	out := &api.ReplacedDriver{Before: was.DriverVersion, After: node.Driver.DriverVersion}
	for _, g := range was.GPUs {
		if _, ok := node.GPU(g.UUID); !ok {
			out.Missing = append(out.Missing, string(g.UUID))
		}
	}
	for _, g := range node.Identities() {
		if !slices.ContainsFunc(was.GPUs, func(k gpu.Identity) bool { return k.UUID == g.UUID }) {
			out.Added = append(out.Added, string(g.UUID))
		}
	}
	m.Log.Info("the driver is used again", "before", out.Before, "after", out.After, "gpus", len(node.GPUs))
	return out, nil
}

// record stores a maintenance, or its end, and reports it.
func (m *Maintenance) record(now *store.Closure) error {
	err := m.State.Record("the maintenance", func(s *store.State) {
		if now == nil {
			closing.Maintenance.Open(s, store.Where{})
		} else {
			closing.Maintenance.Close(s, *now)
		}
	})
	if err != nil {
		return err
	}
	m.setWaiting("")
	m.report()
	return nil
}

// report sets the one condition of a maintenance.
func (m *Maintenance) report() {
	now, driver := closing.InMaintenance(m.State.Stored())
	if now == nil {
		m.Conditions.Clear("maintenance", "")
		m.Invalidate()
		return
	}
	what := closing.MaintenanceText(now)
	switch {
	case driver.Parked:
		what += "; the driver is not used and can be unloaded"
	case driver.Driver:
		what += "; the driver is not parked yet: " + m.waitingFor()
	}
	m.Conditions.Set("maintenance", "", what, "'gpushare maintenance' shows what is in its way, 'gpushare maintenance off' ends it")
	m.Invalidate()
}

func (m *Maintenance) setWaiting(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = why
}

// waitingFor is why the driver is not parked yet.
func (m *Maintenance) waitingFor() string {
	if n := len(m.leases()); n > 0 {
		return text.Count(n, "lease") + " left"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.waiting, "MPS and the NVML worker are being stopped")
}

// leases are those that have GPUs.
func (m *Maintenance) leases() []string {
	out := []string{}
	for _, l := range m.Table.Live() {
		if len(l.Place.GPUs) > 0 {
			out = append(out, l.ID)
		}
	}
	slices.Sort(out)
	return out
}

func (m *Maintenance) result(ctx context.Context) *api.MaintenanceResult {
	_, driver := closing.InMaintenance(m.State.Stored())
	out := &api.MaintenanceResult{SchemaVersion: 1, Maintenance: closing.WireMaintenance(m.State.Stored()), Leases: m.leases()}
	if !driver.Driver {
		return out
	}
	if !driver.Parked {
		out.Waiting = m.waitingFor()
	}
	users, complete := m.Users.DriverUsers(ctx)
	out.Unread = !complete
	for _, u := range users {
		out.DriverUsers = append(
			out.DriverUsers,
			api.DriverUser{PID: u.PID, Command: u.Name, User: m.UserName(int(u.UID)), Unit: u.Unit, Lease: u.Lease, Nodes: u.Nodes},
		)
	}
	return out
}
