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
