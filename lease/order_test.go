package lease

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/api"
)

// clocked is a table in virtual time, whose leases are started as soon as they have a place.
type clocked struct {
	*Table
	t   *testing.T
	now time.Time
	pid int
}

func newClocked(t *testing.T, v View) *clocked {
	c := &clocked{t: t, now: epoch}
	c.Table = New(Config{Isolation: &fakeIsolation{}, Capacity: firstFit{}, Now: func() time.Time { return c.now }})
	c.Update(v)
	return c
}

// queue submits a request that waits, and starts what has a place.
func (c *clocked) queue(tenant, grant string, uid int, whole time.Duration) *Ticket {
	c.t.Helper()
	r := Request{Tenant: tenant, Grant: grant, Member: []string{tenant}, UID: uid, User: fmt.Sprint("u", uid), Wait: queueForever()}
	if whole > 0 {
		r.MaxTime = new(api.Duration(whole))
	}
	k, err := c.Submit(r)
	if err != nil {
		c.t.Fatal(err)
	}
	c.startPlaced()
	return k
}

func (c *clocked) startPlaced() {
	c.t.Helper()
	for _, l := range c.Live() {
		if l.State != Placed {
			continue
		}
		c.pid++
		if _, _, err := c.Start(c.t.Context(), l.ID, Process{c.pid, 1}); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *clocked) end(k *Ticket) {
	c.t.Helper()
	if err := c.Ended(context.Background(), k.ID(), "exited"); err != nil {
		c.t.Fatal(err)
	}
	c.startPlaced()
}

// waiting lists the users of the requests that wait, in order.
func (c *clocked) waiting() (uids []int) {
	for _, l := range c.List() {
		if l.State == api.LeaseQueued {
			uids = append(uids, l.UID)
		}
	}
	return uids
}

func (c *clocked) lease(k *Ticket) api.Lease {
	for _, l := range c.List() {
		if l.ID == k.ID() {
			return l
		}
	}
	return api.Lease{}
}

// unlimited is a grant with so many leases that only the GPUs limit them.
func unlimited(g Grant) Grant { n := 500; g.Spec.MaxLeases = &n; return g }

func oneGPU() View {
	return View{
		Generation: 1,
		GPUs:       []GPUView{device(0, api.ModeExclusive)},
		Grants:     []Grant{unlimited(exclusive("red", "x", 1)), unlimited(exclusive("blue", "x", 1))},
	}
}

// A user who has the GPU and 63 requests in the queue is behind the first request of another, of the same tenant or not.
func TestOneUserDoesNotBlockTheQueue(t *testing.T) {
	for _, tenant := range []string{"red", "blue"} {
		t.Run(tenant, func(t *testing.T) {
			c := newClocked(t, oneGPU())
			running := c.queue("red", "x", 1001, 0)
			for range 63 {
				c.queue("red", "x", 1001, 0)
			}
			c.now = c.now.Add(time.Second)
			other := c.queue(tenant, "x", 1002, 0)
			if l := c.lease(other); l.Position != 1 {
				t.Errorf("it is at position %d: %s", l.Position, l.PositionReason)
			}
			c.end(running)
			if !isPlaced(c.Table, other) {
				t.Error("the other user's request has no place")
			}
		})
	}
}

// While no user used anything they alternate, however many requests one of them has and who asked first.
func TestUsersAlternate(t *testing.T) {
	v := oneGPU()
	v.GPUs[0].Closed = "cordoned"
	c := newClocked(t, v)
	for range 4 {
		c.queue("red", "x", 1001, 0)
	}
	for range 2 {
		c.queue("red", "x", 1002, 0)
	}
	c.queue("blue", "x", 1003, 0)
	if got, want := fmt.Sprint(c.waiting()), "[1001 1003 1002 1001 1002 1001 1001]"; got != want {
		t.Errorf("the order is %s, want %s", got, want)
	}
}

// What was used counts half after each half-life, what a running lease uses counts at once, and half a GPU counts half.
func TestUseDecides(t *testing.T) {
	half := func(name string) Grant { return timeslice(name, "half", 50, gib) }
	v := View{
		Generation: 1, Queue: Queue{HalfLife: time.Hour}, GPUs: []GPUView{device(0, api.ModeExclusive), device(1, api.ModeTimeslice)},
		Grants: []Grant{unlimited(exclusive("red", "x", 1)), unlimited(exclusive("blue", "x", 1)), half("blue")},
	}
	c := newClocked(t, v)
	used := func(tenant string) float64 {
		for _, u := range c.Lately().Users {
			if u.Tenant == tenant {
				return u.GPUSeconds
			}
		}
		return 0
	}
	near := func(got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-6*want+1e-3 {
			t.Errorf("used %v GPU-seconds, want %v", got, want)
		}
	}
	red := c.queue("red", "x", 1001, 0)
	c.queue("blue", "half", 1002, 0)
	c.now = c.now.Add(time.Hour)
	integral := 3600 / math.Ln2 * (1 - 0.5)
	near(used("red"), integral)
	near(used("blue"), integral/2)
	waitsRed, waitsBlue := c.queue("red", "x", 1001, 0), c.queue("blue", "x", 1002, 0)
	if l := c.lease(waitsBlue); l.Position != 1 ||
		!strings.Contains(l.PositionReason, "tenant blue used 0.36 GPU-hours lately, 0.36 GPU-hours of it by u1002 (half-life 1h)") {
		t.Errorf("position %d: %s", l.Position, l.PositionReason)
	}
	if l := c.lease(waitsRed); l.Position != 2 || !strings.Contains(l.PositionReason, "tenant red used 0.72 GPU-hours lately") {
		t.Errorf("position %d: %s", l.Position, l.PositionReason)
	}
	c.end(red)
	if !isPlaced(c.Table, waitsBlue) {
		t.Error("who used more is first")
	}
	c.now = c.now.Add(2 * time.Hour)
	near(used("red"), integral/4)
	c.Update(v)
	c.end(waitsBlue)
	if !isPlaced(c.Table, waitsRed) {
		t.Error("it has no place")
	}
}

// A priority decides before what was used.
func TestPriorityDecidesFirst(t *testing.T) {
	v := oneGPU()
	v.Grants[0].Priority = "high"
	c := newClocked(t, v)
	c.queue("red", "x", 1001, 0)
	c.now = c.now.Add(10 * time.Hour)
	blue, red := c.queue("blue", "x", 1002, 0), c.queue("red", "x", 1001, 0)
	if c.lease(red).Position != 1 || c.lease(blue).Position != 2 ||
		!strings.Contains(c.lease(blue).PositionReason, "1 request of a higher priority ahead") {
		t.Errorf("%+v", c.List())
	}
}

// What was used is the same after a restart, also of leases that run meanwhile, and old states have none of it.
func TestUseSurvivesARestart(t *testing.T) {
	c := newClocked(t, oneGPU())
	running := c.queue("red", "x", 1001, 0)
	c.now = c.now.Add(time.Hour)
	c.end(running)
	c.queue("blue", "x", 1002, 0)
	c.now = c.now.Add(time.Minute)
	b, err := c.State()
	if err != nil {
		t.Fatal(err)
	}
	c.now = c.now.Add(20 * time.Minute)
	want := c.Lately()
	fresh := &clocked{t: t, now: c.now}
	fresh.Table = New(Config{Isolation: &fakeIsolation{}, Now: func() time.Time { return fresh.now }})
	if err := fresh.Restore(b); err != nil {
		t.Fatal(err)
	}
	fresh.RestoreLately(Lately{At: epoch, Users: []UsedLately{{"red", 7, 1e6}}}) // It is not asked for: the state knows more.
	got := fresh.Lately()
	if !slices.EqualFunc(got.Users, want.Users, func(a, b UsedLately) bool {
		return a.Tenant == b.Tenant && a.UID == b.UID && math.Abs(a.GPUSeconds-b.GPUSeconds) < 1e-6
	}) || len(want.Users) != 2 {
		t.Errorf("after the restart %+v, want %+v", got, want)
	}
	fresh.Update(oneGPU())
	red, blue := fresh.queue("red", "x", 1001, 0), fresh.queue("blue", "x", 1002, 0)
	if fresh.lease(blue).Position != 1 || fresh.lease(red).Position != 2 {
		t.Errorf("%+v", fresh.List())
	}

	rebooted := New(Config{Isolation: &fakeIsolation{}, Now: func() time.Time { return c.now.Add(24 * time.Hour) }})
	rebooted.RestoreLately(want)
	for i, u := range rebooted.Lately().Users {
		if math.Abs(u.GPUSeconds-want.Users[i].GPUSeconds/2) > 1e-6 {
			t.Errorf("a half-life after the reboot %+v, before %+v", u, want.Users[i])
		}
	}
	old := New(Config{Isolation: &fakeIsolation{}})
	if err := old.Restore([]byte(`{"format":2,"generation":7,"leases":null}`)); err != nil || len(old.Lately().Users) != 0 {
		t.Error(err, old.Lately())
	}
}

// The account is bounded, and forgets who used least.
func TestLatelyIsBounded(t *testing.T) {
	var u lately
	u.advance(epoch, time.Hour, nil)
	for i := range maxLately + 20 {
		u.advance(u.at.Add(time.Second), 1000*time.Hour, map[member]float64{{"t", i}: float64(10 + i)})
	}
	if n := len(u.used); n != maxLately {
		t.Errorf("%d users are kept", n)
	}
	if u.used[member{"t", 0}] != 0 || u.used[member{"t", maxLately + 19}] == 0 {
		t.Error("who used most was forgotten")
	}
	u.advance(u.at.Add(-time.Hour), time.Hour, map[member]float64{{"t", 1}: 1}) // A clock that goes back.
	if n := len(u.used); n != maxLately || u.used[member{"t", 1}] != 0 {
		t.Errorf("after the clock was set back %d are kept", n)
	}
	u.advance(u.at.Add(1e6*time.Hour), time.Hour, nil)
	if n := len(u.used); n != 0 {
		t.Errorf("%d users are kept indefinitely", n)
	}
	var r lately
	r.restore(&Lately{At: epoch, Users: []UsedLately{{"t", 1, math.Inf(1)}, {"t", 2, math.NaN()}, {"t", 3, -5}, {"t", 4, 5}}})
	if len(r.used) != 1 {
		t.Errorf("restored %v", r.used)
	}
}

// Whatever the steps between, the account is the integral of what was held, each moment weighed by its age.
func TestLatelyIsTheIntegral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var u lately
		u.advance(epoch, time.Hour, nil)
		want, at, m := 0.0, 0.0, member{"t", 1}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			passed := float64(rapid.IntRange(1, 7200).Draw(t, "seconds"))
			part := float64(rapid.IntRange(1, 16).Draw(t, "part")) / 8
			keeps := math.Exp2(-passed / 3600)
			want = want*keeps + part*3600/math.Ln2*(1-keeps)
			for left := passed; left > 0; { // In pieces it is the same.
				piece := min(left, float64(rapid.IntRange(1, 3600).Draw(t, "piece")))
				left -= piece
				at += piece
				u.advance(epoch.Add(time.Duration(at*float64(time.Second))), time.Hour, map[member]float64{m: part})
			}
		}
		if math.Abs(u.used[m]-want) > 1e-6*want {
			t.Fatalf("used %v, want %v", u.used[m], want)
		}
	})
}

// The order is that of the definition: each time the tenant with the least that counts is next, then its user, then the first.
func TestOrderIsTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := View{Generation: 1, GPUs: []GPUView{device(0, api.ModeExclusive)}}
		v.GPUs[0].Closed = "cordoned"
		tenants := []string{"a", "b", "c"}
		for i, name := range tenants {
			v.Grants = append(
				v.Grants, with(unlimited(exclusive(name, "x", 1)), func(g *Grant) { g.Priority = []string{"", "", "high"}[i] }),
			)
		}
		tab := New(Config{Isolation: &fakeIsolation{}, Now: func() time.Time { return epoch }})
		tab.RestoreLately(Lately{At: epoch, Users: []UsedLately{
			{
				"a",
				1,
				float64(rapid.IntRange(0, 3000).Draw(t, "a1")),
			},
			{"a", 2, float64(rapid.IntRange(0, 3000).Draw(t, "a2"))},
			{"b", 1, float64(rapid.IntRange(0, 3000).Draw(t, "b1"))},
		}})
		tab.Update(v)
		type request struct {
			m member
			n int
		}
		var left []request
		for i := range rapid.IntRange(1, 25).Draw(t, "requests") {
			m := member{rapid.SampledFrom(tenants).Draw(t, "tenant"), rapid.IntRange(1, 3).Draw(t, "uid")}
			if _, err := tab.Submit(
				Request{Tenant: m.tenant, Admin: true, UID: m.uid, Wait: queueForever(), Key: fmt.Sprint(i)},
			); err != nil {
				t.Fatal(err)
			}
			left = append(left, request{m, i})
		}
		byUser, byTenant := map[member]int64{}, map[string]int64{}
		for _, u := range tab.lately.list().Users {
			byUser[member{u.Tenant, u.UID}] += milliseconds(u.GPUSeconds)
			byTenant[u.Tenant] += milliseconds(u.GPUSeconds)
		}
		for i, k := range tab.queue {
			best := 0
			for j := range left {
				x, y := left[j], left[best]
				less := func() bool {
					switch {
					case (x.m.tenant == "c") != (y.m.tenant == "c"):
						return x.m.tenant == "c"
					case x.m.tenant == y.m.tenant && byUser[x.m] != byUser[y.m]:
						return byUser[x.m] < byUser[y.m]
					case x.m.tenant != y.m.tenant && byTenant[x.m.tenant] != byTenant[y.m.tenant]:
						return byTenant[x.m.tenant] < byTenant[y.m.tenant]
					}
					return x.n < y.n
				}
				if less() {
					best = j
				}
			}
			next := left[best]
			if k.request.Key != fmt.Sprint(next.n) {
				// Of tenants with equal use the request that came first is ahead: it may be another than that of the tenant's next user.
				if other := slices.IndexFunc(
					left, func(r request) bool { return k.request.Key == fmt.Sprint(r.n) },
				); byTenant[left[other].m.tenant] != byTenant[next.m.tenant] ||
					left[other].m.tenant == next.m.tenant {
					t.Fatalf("at %d there is %s of %s/%d, want %d of %+v", i, k.request.Key, k.tenant, k.request.UID, next.n, next.m)
				}
				best = slices.IndexFunc(left, func(r request) bool { return k.request.Key == fmt.Sprint(r.n) })
				next = left[best]
			}
			byUser[next.m] += assumedTime.Milliseconds()
			byTenant[next.m.tenant] += assumedTime.Milliseconds()
			left = slices.Delete(left, best, best+1)
		}
	})
}
