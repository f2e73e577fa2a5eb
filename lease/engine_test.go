package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

func keyedRequest(key string) Request {
	return Request{
		Tenant: "a", Admin: true, Origin: OriginAttached, Engine: &Engine{Key: key, Account: "physics", BindBy: epoch.Add(time.Hour)},
		Own: Own{Memory: gib},
	}
}

func mustKey(t *testing.T, tab *Table, key string) Lease {
	t.Helper()
	k, err := tab.Submit(keyedRequest(key))
	if err != nil {
		t.Fatal(err)
	}
	l, ok := tab.Get(k.ID())
	if !ok || !l.AwaitsCgroup() {
		t.Fatalf("the lease is %+v", l)
	}
	return l
}

// A lease without processes outlives a restart with its key, its terms and its cgroup; what ended keeps its key.
func TestKeyedLeasesAreRestored(t *testing.T) {
	t.Parallel()
	tab, _ := table(t, ownView())
	waits, runs, dropped := mustKey(t, tab, "slurm:1"), mustKey(t, tab, "slurm:2"), mustKey(t, tab, "slurm:3")
	if !tab.NameCgroup(waits.ID, "/job_1") || tab.NameCgroup(waits.ID, "/job_other") || !tab.NameCgroup(waits.ID, "/job_1") {
		t.Error("a lease has one cgroup")
	}
	if _, _, err := tab.Start(t.Context(), runs.ID, Process{42, 7}); err != nil {
		t.Fatal(err)
	}
	if err := tab.Ended(t.Context(), runs.ID, "its last process ended"); err != nil {
		t.Fatal(err)
	}
	if ok, err := tab.DropUnbound(t.Context(), dropped.ID, "it had no process"); !ok || err != nil {
		t.Errorf("drop: %v, %v", ok, err)
	}
	if ok, _ := tab.DropUnbound(t.Context(), dropped.ID, "again"); ok {
		t.Error("a lease is dropped twice")
	}
	b, err := tab.State()
	if err != nil {
		t.Fatal(err)
	}
	again := New(Config{Isolation: &fakeIsolation{}, Now: func() time.Time { return epoch.Add(time.Minute) }})
	if err := again.Restore(b); err != nil {
		t.Fatal(err)
	}
	again.Update(ownView())
	l, ok := again.Keyed("slurm:1")
	if !ok || l.ID != waits.ID || !l.AwaitsCgroup() || l.Cgroup != "/job_1" || l.Own.Memory != gib || l.Engine.Account != "physics" ||
		!l.Engine.BindBy.Equal(epoch.Add(time.Hour)) {
		t.Errorf("restored: %v, %+v", ok, l)
	}
	for key, want := range map[string]EndedKey{
		"slurm:2": {Lease: runs.ID, Reason: "its last process ended"}, "slurm:3": {Lease: dropped.ID, Reason: "it had no process"},
	} {
		if k, ok := again.KeyEnded(key); !ok || k.Lease != want.Lease || k.Reason != want.Reason {
			t.Errorf("%s: %v, %+v", key, ok, k)
		}
		if _, live := again.Keyed(key); live {
			t.Errorf("%s has a lease", key)
		}
	}
	if _, ok := again.KeyEnded("slurm:1"); ok {
		t.Error("a key has ended whose lease waits")
	}
}

// A lease that could not be started does not keep its key: the engine asks again. Keys are forgotten after their time, and the oldest of
// too many.
func TestEndedKeysAreBounded(t *testing.T) {
	t.Parallel()
	now := epoch
	w := &fakeIsolation{}
	tab := New(Config{Isolation: w, Now: func() time.Time { return now }})
	tab.Update(ownView())
	w.isolateErr = errors.New("the cgroup is empty")
	l := mustKey(t, tab, "slurm:0")
	if _, _, err := tab.Start(t.Context(), l.ID, Process{42, 7}); err == nil {
		t.Fatal("it started")
	}
	if _, ok := tab.KeyEnded("slurm:0"); ok {
		t.Error("the key of a lease that did not start is kept")
	}
	w.isolateErr = nil
	end := func(key string) {
		t.Helper()
		if ok, err := tab.DropUnbound(t.Context(), mustKey(t, tab, key).ID, "dropped"); !ok || err != nil {
			t.Fatalf("drop: %v, %v", ok, err)
		}
	}
	for i := range maxEndedKeys + 1 {
		end(fmt.Sprintf("slurm:%d", i))
	}
	if _, ok := tab.KeyEnded("slurm:0"); ok {
		t.Error("the oldest of too many is kept")
	}
	if _, ok := tab.KeyEnded("slurm:1"); !ok {
		t.Error("another one is not kept")
	}
	now = now.Add(keyRetention + time.Second)
	if _, ok := tab.KeyEnded("slurm:1"); ok {
		t.Error("a key is kept for longer than its time")
	}
}

// What an engine chose is where the lease is, or it is refused. A place that a process of no lease uses is not free: the job has not
// begun.
func TestChosenPlace(t *testing.T) {
	t.Parallel()
	d := partitioned(0)
	other := instance(0, "2g.10gb", 2, 0, 2, 10*gib)
	busy := &d.Instances[2]
	busy.Occupied, busy.UUIDs = "pid 4711 (python) uses it", []gpu.UUID{"MIG-busy"}
	v := View{Generation: 1, GPUs: []GPUView{d}, Grants: []Grant{mig("a", "small", "1g.5gb"), mig("a", "two", "2g.10gb")}}
	for _, c := range []struct{ name, instance, grant, says string }{
		{"by its start", "2", "small", ""},
		{"by its UUID", string(other.UUIDs[0]), "two", ""},
		{"of another grant", "2", "two", "grant two is not of that instance"},
		{"none", "1", "small", "there is none on GPU 0"},
		{"used by a process of no lease", "MIG-busy", "small", "pid 4711 (python) uses it"},
	} {
		tab, _ := table(t, v)
		r := keyedRequest("slurm:1")
		r.Own, r.GPUs, r.Instance, r.Grant = Own{}, []string{"0"}, c.instance, c.grant
		k, err := tab.Submit(r)
		switch {
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		case c.says != "":
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		default:
			l, _ := tab.Get(k.ID())
			if start := fmt.Sprint(l.Place.Instance.Start); start != c.instance && string(l.Place.Devices[0]) != c.instance {
				t.Errorf("%s: it is at %s", c.name, start)
			}
			if l.Terms.Chosen != nil {
				t.Errorf("%s: the choice is kept in its terms", c.name)
			}
		}
	}
}

// The key of a lease that could not be recorded is free: its engine may try again.
func TestKeyOfALeaseThatWasNotRecorded(t *testing.T) {
	t.Parallel()
	saves := 0
	save := func(context.Context, []byte) error {
		if saves++; saves == 2 {
			return errors.New("no space left")
		}
		return nil
	}
	tab := New(Config{Isolation: &fakeIsolation{}, Save: save, Now: func() time.Time { return epoch }})
	tab.Update(ownView())
	for _, want := range []bool{false, true} {
		l := mustKey(t, tab, "slurm:1")
		_, _, err := tab.Start(t.Context(), l.ID, Process{42, 7})
		if started := err == nil; started != want {
			t.Fatalf("started: %v, %v", started, err)
		}
		if err == nil {
			if err := tab.Ended(t.Context(), l.ID, "its last process ended"); err != nil {
				t.Fatal(err)
			}
		}
		if k, kept := tab.KeyEnded("slurm:1"); kept != want {
			t.Errorf("its key is kept: %v, %+v", kept, k)
		}
	}
}

// A lease that was read back, and whose place is occupied when it starts, has no request that would wait again.
func TestKeyedLeaseAtAnOccupiedPlaceAfterARestart(t *testing.T) {
	t.Parallel()
	tab, _ := table(t, ownView())
	l := mustKey(t, tab, "slurm:1")
	b, err := tab.State()
	if err != nil {
		t.Fatal(err)
	}
	again := New(Config{Isolation: &occupiedIsolation{at: map[gpu.UUID]bool{"GPU-0": true}}, Now: func() time.Time { return epoch }})
	if err := again.Restore(b); err != nil {
		t.Fatal(err)
	}
	again.Update(ownView())
	if _, _, err := again.Start(t.Context(), l.ID, Process{42, 7}); err == nil || errors.Is(err, ErrQueuedAgain) {
		t.Errorf("it starts with %v", err)
	}
}

// On a GPU with instances on demand the instance is created where the engine chose, also where another placement would cost less, and an
// idle one of the same profile elsewhere is not taken for it.
func TestChosenPlaceOnDemand(t *testing.T) {
	t.Parallel()
	idle := InstanceSlot{ProfileID: 14, Name: "1g.6gb", Placement: gpu.Placement{Start: 0, Size: 1}}
	idleLarge := InstanceSlot{ProfileID: 5, Name: "2g.12gb", Placement: gpu.Placement{Start: 2, Size: 2}}
	for _, c := range []struct {
		name, instance, grant string
		there                 []InstanceSlot
		want                  gpu.Placement // of what is created; none: it is placed at once, or refused
		placed                bool
		says                  string
	}{
		{name: "an empty GPU", instance: "2", grant: "one", want: gpu.Placement{Start: 2, Size: 1}},
		{name: "next to an idle one", instance: "2", grant: "one", there: []InstanceSlot{idle}, want: gpu.Placement{Start: 2, Size: 1}},
		{name: "instead of a larger idle one", instance: "2", grant: "one", there: []InstanceSlot{idleLarge}, want: gpu.Placement{Start: 2, Size: 1}},
		{name: "one that is there", instance: "0", grant: "one", there: []InstanceSlot{idle}, placed: true},
		{name: "no placement of the profile", instance: "1", grant: "two", says: "no instance of grant two begins at memory slice 1"},
		{name: "no memory slice", instance: "9", grant: "one", says: "no instance of grant one begins at memory slice 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newDynamicFixture(t, 1, mig("a", "one", "1g.6gb"), mig("a", "two", "2g.12gb"))
			for _, there := range c.there {
				w.view.GPUs[0].Instances = append(
					w.view.GPUs[0].Instances,
					instance(0, there.Name, there.Placement.Size, there.Placement.Start, there.Placement.Size, gib),
				)
			}
			w.update()
			r := keyedRequest("slurm:1")
			r.Own, r.GPUs, r.Instance, r.Grant = Own{}, []string{"0"}, c.instance, c.grant
			k, err := w.Submit(r)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			pending := w.TakePendingInstances()
			if c.placed {
				if l, ok := w.Get(k.ID()); !ok || len(pending) > 0 || l.Place.Instance.Start != 0 {
					t.Errorf("it is %+v, and %+v is created", l.Place, pending)
				}
				return
			}
			if len(pending) != 1 || pending[0].Placement != c.want {
				t.Fatalf("created is %+v, want it at %+v", pending, c.want)
			}
			w.finish(pending)
			if l, ok := w.Get(k.ID()); !ok || *l.Place.Instance != c.want {
				t.Errorf("it is at %+v, want %+v", l.Place.Instance, c.want)
			}
		})
	}
}
