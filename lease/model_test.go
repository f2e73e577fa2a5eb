package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// machine drives a table with random requests, ends, faults and changes of the node, and checks the invariants after
// each.
type machine struct {
	tab       *Table
	isolation *fakeIsolation
	view      View
	tickets   map[string]*Ticket // not known to be placed, failed or cancelled
	order     []string           // ids in the order of the requests
	kindOf    map[string]grantAndUser
	users     map[int]UserUsage // at the last check
	preempted int               // requests that got a place by it
	respec    bool              // the terms of leases may have changed since then
	standings map[right]Standing
	had       map[string]bool   // the leases at the last check
	seen      map[uint64]string // every generation that was assigned
	pid       int
}

type grantAndUser struct {
	Key
	uid int
}

// right is what a user may have.
type right struct {
	uid    int
	tenant string
}

// modelRequester is a user of the model.
type modelRequester struct {
	m   *machine
	uid int
}

func (h modelRequester) Standing(tenant string) Standing { return h.m.standings[right{h.uid, tenant}] }

func (h modelRequester) Confirm(_ context.Context, tenant string) Standing { return h.Standing(tenant) }

// Revoke takes the right to a tenant from a user, gives it back, or leaves open whether they have it.
func (m *machine) Revoke(t *rapid.T) {
	r := right{rapid.SampledFrom([]int{0, 1001, 1002}).Draw(t, "uid"), rapid.SampledFrom(m.view.Grants).Draw(t, "grant").Tenant}
	if m.standings == nil {
		m.standings = map[right]Standing{}
	}
	m.standings[r] = rapid.SampledFrom([]Standing{{}, {}, {Denied: "removed"}, {Unsure: "the directory hangs"}}).Draw(t, "standing")
	m.tab.Recheck()
}

func (m *machine) update() {
	m.view.GPUs = append([]GPUView(nil), m.view.GPUs...)
	m.view.Grants = append([]Grant(nil), m.view.Grants...)
	m.tab.Update(m.view)
}

func (m *machine) anyLive(t *rapid.T) (Lease, bool) {
	live := m.tab.Live()
	if len(live) == 0 {
		return Lease{}, false
	}
	return rapid.SampledFrom(live).Draw(t, "lease"), true
}

// Submit submits a request for a random grant, or for any of a tenant's.
func (m *machine) Submit(t *rapid.T) {
	g := rapid.SampledFrom(m.view.Grants).Draw(t, "grant")
	r := Request{Tenant: g.Tenant, Admin: true, UID: rapid.SampledFrom([]int{0, 1001, 1002}).Draw(t, "uid")}
	r.By = modelRequester{m, r.UID}
	if rapid.Bool().Draw(t, "named") {
		r.Grant = g.Spec.Name
	}
	var forever time.Duration
	if rapid.Bool().Draw(t, "wait") {
		r.Wait = &forever
	}
	k, err := m.tab.Submit(r)
	if err != nil {
		var e *api.Error
		if s := m.standings[right{r.UID, g.Tenant}]; s.Denied != "" && errors.As(err, &e) && e.Kind == api.KindDenied {
			return
		}
		if !errors.As(err, &e) || e.Kind != api.KindUnavailable && e.Kind != api.KindInfeasible {
			t.Fatalf("refused with %v", err)
		}
		if r.Wait != nil && e.Kind == api.KindUnavailable {
			t.Fatalf("a request that waits was refused: %v", err)
		}
		return
	}
	if m.tickets[k.ID()] != nil {
		t.Fatalf("id %s was assigned twice", k.ID())
	}
	if old, ok := m.seen[k.lease.Generation]; ok {
		t.Fatalf("generation %d was assigned to %s and %s", k.lease.Generation, old, k.ID())
	}
	m.seen[k.lease.Generation] = k.ID()
	m.tickets[k.ID()] = k
	if r.Grant != "" {
		m.order = append(m.order, k.ID())
		m.kindOf[k.ID()] = grantAndUser{g.Key(), r.UID}
	}
}

// Cancel cancels a random ticket.
func (m *machine) Cancel(t *rapid.T) {
	ids := []string{}
	for id := range m.tickets {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		t.Skip("no ticket")
	}
	id := rapid.SampledFrom(ids).Draw(t, "ticket")
	m.tickets[id].Cancel()
	delete(m.tickets, id)
}

// Start starts a random lease; sometimes its isolation fails.
func (m *machine) Start(t *rapid.T) {
	l, ok := m.anyLive(t)
	if !ok {
		t.Skip("no lease")
	}
	if rapid.IntRange(0, 4).Draw(t, "fault") == 0 {
		m.isolation.isolateErr = errors.New("no cgroup")
	}
	m.pid++
	_, _, err := m.tab.Start(context.Background(), l.ID, Process{m.pid, 1})
	if err == nil && l.State != Placed {
		t.Fatalf("%s was started twice", l.ID)
	}
	if s := m.standings[right{l.UID, l.Terms.Tenant}]; err == nil && s != (Standing{}) {
		t.Fatalf("%s was started although its user has no right to it: %+v", l.ID, s)
	}
	m.isolation.isolateErr = nil
}

// End ends a random lease; sometimes its isolation cannot be removed.
func (m *machine) End(t *rapid.T) {
	l, ok := m.anyLive(t)
	if !ok {
		t.Skip("no lease")
	}
	if rapid.IntRange(0, 4).Draw(t, "fault") == 0 {
		m.isolation.removeErr = errors.New("busy")
	}
	err := m.tab.Ended(context.Background(), l.ID, "exited")
	if _, still := m.tab.Get(l.ID); still != (err != nil) {
		t.Fatalf("%s: still there %v, error %v", l.ID, still, err)
	}
	m.isolation.removeErr = nil
}

// Close closes or opens a GPU.
func (m *machine) Close(t *rapid.T) {
	i := rapid.IntRange(0, len(m.view.GPUs)-1).Draw(t, "gpu")
	m.update()
	if m.view.GPUs[i].Closed == "" {
		m.view.GPUs[i].Closed = "cordoned"
	} else {
		m.view.GPUs[i].Closed = ""
	}
	m.update()
}

// ChangeGrant changes a grant: its size, its priority, whether it is reserved.
func (m *machine) ChangeGrant(t *rapid.T) {
	m.update()
	i := rapid.IntRange(0, len(m.view.Grants)-1).Draw(t, "grant")
	g := &m.view.Grants[i]
	g.Spec.Reserved = rapid.Bool().Draw(t, "reserved")
	g.Priority = rapid.SampledFrom([]string{"", "low", "high"}).Draw(t, "priority")
	g.Preempt = rapid.SampledFrom([]string{"", api.PreemptStop, api.PreemptStop}).Draw(t, "preempt")
	for j := range m.view.Grants { // a tenant has one priority
		if m.view.Grants[j].Tenant == g.Tenant {
			m.view.Grants[j].Priority, m.view.Grants[j].Preempt = g.Priority, g.Preempt
		}
	}
	if s := g.share(); s != nil {
		c := *s
		c.GPUMemory = bytesOf(uint64(rapid.IntRange(1, 42).Draw(t, "memory")) * gib)
		c.Share = api.Percent(rapid.IntRange(1, 100).Draw(t, "share"))
		if g.Spec.MPS != nil {
			g.Spec.MPS = &c
		} else {
			g.Spec.Timeslice = &c
			g.Spec.Latency = ""
			if c.Share <= api.MostLowLatency && rapid.Bool().Draw(t, "low latency") {
				g.Spec.Latency = api.LatencyLow
			}
		}
	}
	m.view.Generation++
	m.respec = true
	m.update()
}

// Preempt stops the leases that the table chose for requests of higher priorities. Then the requests have their places.
func (m *machine) Preempt(t *rapid.T) {
	for _, p := range m.tab.TakePreemptions() {
		k := m.tickets[p.Request.ID]
		rank := func(priority string) int { return (&Grant{Priority: priority}).rank() }
		for _, victim := range p.Victims {
			l, ok := m.tab.Get(victim.ID)
			switch {
			case !ok || l.State != Running || l.InPlace():
				t.Fatalf("%s is to be stopped: %v %+v", victim.ID, ok, l)
			case l.Terms.Preempt != api.PreemptStop || rank(l.Terms.Priority) >= k.rank():
				t.Fatalf("%s (%+v) is to be stopped for a request of rank %d", l.ID, l.Terms, k.rank())
			case !m.tab.Preempts(victim.ID):
				t.Fatalf("%s is not to be stopped any more", l.ID)
			}
		}
		before := m.tab.Live()
		for i, victim := range p.Victims {
			if _, ok := m.tab.Get(p.Request.ID); ok {
				t.Fatalf("it was placed after %d of %d had ended", i, len(p.Victims))
			}
			if err := m.tab.Ended(context.Background(), victim.ID, "preempted"); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range m.tab.Live() { // Leases that are ending are not stopped: the request only waits for them.
			if _, ok := m.tab.Get(p.Request.ID); !ok && l.State == Ending {
				if err := m.tab.Ended(context.Background(), l.ID, "exited"); err != nil {
					t.Fatal(err)
				}
			}
		}
		// A request further ahead, which the limit of its user held back until now, may take the place.
		ahead := slices.ContainsFunc(m.tab.Live(), func(l Lease) bool {
			other := m.tickets[l.ID]
			return other != nil && !slices.ContainsFunc(before, func(old Lease) bool { return old.ID == l.ID }) &&
				(other.rank() > k.rank() || other.rank() == k.rank() && other.sequence < k.sequence)
		})
		if _, ok := m.tab.Get(p.Request.ID); !ok && !ahead {
			t.Fatalf(
				"%s has no place after %d leases were stopped for it: it waits because %q\n%s", p.Request.ID, len(p.Victims), k.waiting,
				m.describe(),
			)
		}
		m.preempted++
	}
}

// LimitUsers changes what one user may have.
func (m *machine) LimitUsers(t *rapid.T) {
	m.update()
	m.view.PerUser = PerUser{Leases: rapid.IntRange(0, 4).Draw(t, "leases"), Memory: uint64(rapid.IntRange(0, 80).Draw(t, "memory")) * gib}
	m.view.Generation++
	m.respec = true // With a new generation more memory of a grant may fit that did not before.
	m.update()
}

// LoseDriver removes the GPUs from the view for a moment.
func (m *machine) LoseDriver(*rapid.T) {
	m.update()
	v := m.view
	v.GPUs, v.DriverUnavailable = nil, "the driver hangs"
	before := len(m.tab.Live())
	m.tab.Update(v)
	if before != len(m.tab.Live()) {
		panic("leases changed while the driver was unavailable")
	}
	m.tab.Update(m.view)
}

// Restart restores the state into a new table, as after the end of the daemon.
func (m *machine) Restart(t *rapid.T) {
	b, err := m.tab.State()
	if err != nil {
		t.Fatal(err)
	}
	old := m.tab.Live()
	fresh := New(Config{Isolation: m.isolation, Now: m.tab.cfg.Now})
	if err := fresh.Restore(b); err != nil {
		t.Fatal(err)
	}
	started := 0
	for _, l := range old {
		if l.Process != (Process{}) {
			started++
			if _, ok := fresh.Get(l.ID); !ok {
				t.Fatalf("%s was lost", l.ID)
			}
		}
	}
	if n := len(fresh.Live()); n != started {
		t.Fatalf("%d of %d leases were restored", n, started)
	}
	m.tab, m.respec = fresh, true
	m.tickets = map[string]*Ticket{}
	m.order, m.kindOf = nil, map[string]grantAndUser{}
	m.update()
}

// describe lists the leases, the grants and what is reserved.
func (m *machine) describe() string {
	var b strings.Builder
	for _, l := range m.tab.List() {
		fmt.Fprintln(&b, l.ID, l.Grant, l.State, l.UID, l.GPUs, l.Waiting)
	}
	for i := range m.view.Grants {
		g := &m.view.Grants[i]
		fmt.Fprintln(&b, g.Key(), g.Priority, g.Preempt, g.memory()/gib, g.Spec.Reserved)
	}
	for i := range m.view.GPUs {
		fmt.Fprintln(&b, m.view.GPUs[i].UUID, m.view.GPUs[i].Closed)
	}
	fmt.Fprintln(&b, m.view.PerUser, m.tab.Users(), m.tab.reserved)
	return b.String()
}

// Check checks the invariants.
func (m *machine) Check(t *rapid.T) {
	live := m.tab.Live()
	// No place is given to a user who has no right to it now, and no request of a removed user waits.
	had := map[string]bool{}
	for _, l := range live {
		had[l.ID] = true
		if s := m.standings[right{l.UID, l.Terms.Tenant}]; s != (Standing{}) && !m.had[l.ID] {
			t.Fatalf("%s was placed although its user has no right to it: %+v", l.ID, s)
		}
	}
	m.had = had
	for _, l := range m.tab.List() {
		if l.State == api.LeaseQueued && m.standings[right{l.UID, l.Tenant}].Denied != "" {
			t.Fatalf("%s waits although its user is removed", l.ID)
		}
	}
	perGrant := map[Key]int{}
	type slot struct {
		gpu gpu.UUID
		at  gpu.Placement
	}
	slots, whole := map[slot]string{}, map[gpu.UUID]string{}
	parts, low := map[gpu.UUID]map[Key]uint64{}, map[gpu.UUID]map[Key]float64{}
	for _, l := range live {
		perGrant[l.Terms.Key()]++
		for _, id := range l.Place.GPUs {
			switch l.Terms.Kind() {
			case api.ModeMIG:
				s := slot{id, *l.Place.Instance}
				if other := slots[s]; other != "" {
					t.Fatalf("%s and %s are on one instance", l.ID, other)
				}
				slots[s] = l.ID
			case api.ModeExclusive:
				if other := whole[id]; other != "" {
					t.Fatalf("%s and %s are on %s, which is exclusive", l.ID, other, id)
				}
				whole[id] = l.ID
			default:
				if parts[id] == nil {
					parts[id] = map[Key]uint64{}
				}
				parts[id][l.Terms.Key()] = max(parts[id][l.Terms.Key()], l.Terms.memory())
				if l.Terms.Spec.Latency != "" {
					if low[id] == nil {
						low[id] = map[Key]float64{}
					}
					low[id][l.Terms.Key()] = max(low[id][l.Terms.Key()], l.Terms.percent())
				}
			}
		}
		if l.Terms.Kind() == api.ModeExclusive && len(l.Place.GPUs) != l.Terms.Spec.Exclusive {
			t.Fatalf("%s has %d GPUs", l.ID, len(l.Place.GPUs))
		}
	}
	for i := range m.view.Grants {
		if g := &m.view.Grants[i]; g.MaxLeases() > 0 && perGrant[g.Key()] > g.MaxLeases() {
			t.Fatalf("%v has %d leases", g.Key(), perGrant[g.Key()])
		}
	}
	// Granted memory never exceeds the budget, by the live leases alone and by Granted, which includes the
	// reservations.
	granted := m.tab.Granted()
	for i := range m.view.GPUs {
		d := &m.view.GPUs[i]
		var sum, said uint64
		for _, b := range parts[d.UUID] {
			sum += b
		}
		for _, g := range granted[d.UUID] {
			said += g.Bytes
		}
		if sum > said || said > d.Capacity-d.Reserve {
			t.Fatalf("%s: live grants have %d, granted is %d of %d", d.UUID, sum, said, d.Capacity-d.Reserve)
		}
	}
	// Grants with latency: low never have more of a GPU's time than they may, by their live leases and with the places that are kept free.
	for i := range m.view.Grants {
		g := &m.view.Grants[i]
		for _, p := range m.tab.reserved[g.Key()] {
			if id := p.GPUs[0]; g.Spec.Latency != "" {
				if low[id] == nil {
					low[id] = map[Key]float64{}
				}
				low[id][g.Key()] = max(low[id][g.Key()], g.percent())
			}
		}
	}
	for id, grants := range low {
		var sum float64
		for _, share := range grants {
			sum += share
		}
		if sum > 80+1e-6 {
			t.Fatalf("%s: the grants with latency: low have %v %% together: %v", id, sum, grants)
		}
	}
	// No user has more than one may have, except for what they had before the limit was lowered. The sum is computed in
	// another way than by the table.
	users := map[int]UserUsage{}
	for _, u := range m.tab.Users() {
		users[u.UID] = u
		n, memory, counted := 0, uint64(0), map[string]uint64{}
		for _, l := range live {
			if l.UID != u.UID {
				continue
			}
			n++
			for _, id := range l.Place.GPUs {
				switch l.Terms.Kind() {
				case api.ModeMIG:
					memory += l.Place.Memory
				case api.ModeExclusive:
					memory += 40 * gib
				default:
					on := fmt.Sprint(l.Terms.Key(), id)
					counted[on] = max(counted[on], l.Terms.memory())
				}
			}
		}
		for _, b := range counted {
			memory += b
		}
		if u.Leases != n || u.Memory != memory || u.UID == 0 {
			t.Fatalf("%+v has %d leases and %d bytes", u, n, memory)
		}
		limit, was := m.view.PerUser, m.users[u.UID]
		if limit.Leases > 0 && n > limit.Leases && n > was.Leases {
			t.Fatalf("uid %d has %d leases of %d, and had %d", u.UID, n, limit.Leases, was.Leases)
		}
		if limit.Memory > 0 && memory > limit.Memory && memory > was.Memory && !m.respec {
			t.Fatalf("uid %d has %d bytes of %d, and had %d", u.UID, memory, limit.Memory, was.Memory)
		}
	}
	m.users, m.respec = users, false
	// No ticket is lost, and the queue is in order.
	waiting := map[string]int{}
	rank := 2
	for _, l := range m.tab.List() {
		if l.State != api.LeaseQueued {
			continue
		}
		waiting[l.ID] = l.Position
		if l.Position != len(waiting) {
			t.Fatalf("%s reports position %d and is at %d", l.ID, l.Position, len(waiting))
		}
		if l.Waiting == "" {
			t.Fatalf("%s reports no reason why it waits", l.ID)
		}
		k := m.tickets[l.ID]
		if k == nil {
			t.Fatalf("%s is in the queue without a ticket", l.ID)
		}
		if k.rank() > rank {
			t.Fatalf("%s has a higher priority than the one before it", l.ID)
		}
		rank = k.rank()
	}
	for id, k := range m.tickets {
		k.t.mu.Lock()
		done, err := k.state.over(), k.err
		k.t.mu.Unlock()
		switch _, queued := waiting[id]; {
		case queued == done:
			t.Fatalf("%s: queued %v, done %v", id, queued, done)
		case done && err != nil:
			delete(m.tickets, id)
		}
	}
	// Of two requests of a user for one grant the earlier one is served first.
	first := map[grantAndUser]string{}
	for _, id := range m.order {
		if _, queued := waiting[id]; queued && first[m.kindOf[id]] == "" {
			first[m.kindOf[id]] = id
		} else if f := first[m.kindOf[id]]; f != "" && m.tickets[id] != nil {
			if l, ok := m.tab.Get(id); ok {
				t.Fatalf("%s (%s) was placed before %s", id, l.State, f)
			}
		}
	}
	// The table has placed all it can: an update without a change places no more.
	before, described := fmt.Sprint(live), m.describe()
	m.update()
	if after := fmt.Sprint(m.tab.Live()); after != before {
		t.Fatalf("a second update placed more:\n%s\n%s", described, m.describe())
	}
}

func TestTableModel(t *testing.T) {
	two, three := 2, 3
	testModel(t, View{
		Generation: 1,
		GPUs: []GPUView{
			partitioned(0), partitioned(1), device(2, "mps"), device(3, "timeslice"), device(4, "timeslice"),
			device(5, "exclusive"), device(6, "exclusive"), device(7, "exclusive"),
		},
		Grants: []Grant{
			mig("a", "m3", "3g.20gb"),
			with(mig("b", "m1", "1g.5gb"), func(g *Grant) { g.Spec.MaxLeases = &three }),
			{Tenant: "c", Spec: api.GrantSpec{Name: "m", Slices: 1, MaxLeases: &two}},
			timeslice("a", "t", 40, 20*gib),
			timeslice("b", "t", 30, 15*gib),
			lowLatency(timeslice("b", "chat", 50, 2*gib)),
			lowLatency(timeslice("c", "chat", 60, gib)),
			with(timeslice("c", "t", 30, 30*gib), func(g *Grant) { g.Spec.MaxLeases = &two }),
			mps("a", "p", 60, 10*gib),
			mps("b", "p", 50, 20*gib),
			exclusive("a", "e", 2),
			exclusive("b", "e", 1),
			with(exclusive("c", "e", 1), func(g *Grant) { g.Spec.MaxLeases = &two }),
		},
	})
}

// On a crowded node requests wait, and leases are stopped for those of higher priorities.
func TestTableModelCrowded(t *testing.T) {
	two := 2
	v := View{
		Generation: 1, GPUs: []GPUView{device(0, "timeslice"), device(1, "exclusive"), device(2, "exclusive")},
		Grants: []Grant{
			timeslice("a", "t", 40, 25*gib),
			timeslice("b", "t", 30, 20*gib),
			timeslice("c", "t", 30, 30*gib),
			timeslice("c", "s", 10, 8*gib),
			exclusive("a", "e", 2),
			exclusive("b", "e", 1),
			with(exclusive("c", "e", 1), func(g *Grant) { g.Spec.MaxLeases = &two }),
		},
	}
	for i := range v.Grants {
		g := &v.Grants[i]
		g.Priority, g.Preempt = map[string]string{"a": "high", "c": "low"}[g.Tenant], map[string]string{"b": api.PreemptStop, "c": api.PreemptStop}[g.Tenant]
	}
	if n := testModel(t, v); n == 0 {
		t.Log("no lease was stopped for another in so few runs")
	}
}

// testModel returns how many requests were placed by preemption.
func testModel(t *testing.T, v View) (preempted int) {
	rapid.Check(t, func(t *rapid.T) {
		now := epoch
		m := &machine{
			isolation: &fakeIsolation{},
			view:      v,
			tickets:   map[string]*Ticket{},
			kindOf:    map[string]grantAndUser{},
			seen:      map[uint64]string{},
		}
		// The clock advances and goes back.
		m.tab = New(Config{Isolation: m.isolation, Now: func() time.Time {
			now = now.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "clock")) * time.Millisecond)
			return now
		}})
		m.update()
		defer func() { preempted += m.preempted }()
		t.Repeat(map[string]func(*rapid.T){
			"":            m.Check,
			"ask":         m.Submit,
			"ask more":    m.Submit,
			"cancel":      m.Cancel,
			"start":       m.Start,
			"start more":  m.Start,
			"end":         m.End,
			"close":       m.Close,
			"respec":      m.ChangeGrant,
			"limit users": m.LimitUsers,
			"preempt":     m.Preempt,
			"lose driver": m.LoseDriver,
			"restart":     m.Restart,
			"revoke":      m.Revoke,
		})
	})
	return preempted
}
