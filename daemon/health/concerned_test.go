package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// relations are the XIDs that were recorded of a lease, with what they have to do with it and how often they came.
func (f *fixture) relations(id string) (out []string) {
	for _, x := range f.recorded(id).XIDs {
		out = append(out, fmt.Sprintf("%d %s %d", x.XID, x.Relation, x.Count))
	}
	return out
}

// onGPU are leases of the GPU, with a device of theirs each.
func (f *fixture) onGPU(ids ...string) {
	for _, id := range ids {
		f.live = append(f.live, lease.Lease{ID: id, Place: lease.Place{GPUs: []gpu.UUID{gpuA}, Devices: []gpu.UUID{gpu.UUID("MIG-" + id)}}})
	}
}

// An XID is recorded of the leases that it concerns: of the one that caused it, or, where the driver names none, as possible of those
// on the GPU or in the instance. Trouble of the GPU is recorded of all.
func TestAnXIDIsRecordedOfItsLeases(t *testing.T) {
	gi, ci := uint32(2), uint32(0)
	for name, c := range map[string]struct {
		xid       uint64
		pid       int
		gi, ci    *uint32
		withEvent bool // without the process, before the line of the log, which comes too late for it
		red, blue string
		notes     int // to both together
	}{
		"of a program":                        {xid: 31, pid: 7, red: "31 caused 1", notes: 1},
		"of a program that no one names":      {xid: 31, red: "31 possible 1", blue: "31 possible 1"},
		"of a process that is not known":      {xid: 31, pid: 99, red: "31 possible 1", blue: "31 possible 1"},
		"named later than it was reported":    {xid: 31, pid: 7, withEvent: true, red: "31 caused 1", notes: 1},
		"in an instance of one lease":         {xid: 13, gi: &gi, red: "13 caused 1", notes: 1},
		"in a compute instance":               {xid: 13, gi: &gi, ci: &ci, red: "13 caused 1", notes: 1},
		"in an instance that has no lease":    {xid: 13, gi: new(uint32(9))},
		"of contained memory":                 {xid: 94, red: "94 possible 1", blue: "94 possible 1"},
		"of the GPU":                          {xid: 95, red: "95 gpu 1", blue: "95 gpu 1", notes: 2},
		"of the GPU that a program caused":    {xid: 46, pid: 7, red: "46 gpu 1", blue: "46 gpu 1", notes: 2},
		"of the GPU in an instance":           {xid: 46, gi: &gi, red: "46 gpu 1", notes: 1},
		"of NVLink":                           {xid: 149, red: "149 gpu 1", blue: "149 gpu 1"},
		"that nothing follows from":           {xid: 63},
		"that nothing follows from, of a pid": {xid: 45, pid: 7, red: "45 caused 1"},
		"of a lost GPU, also in an instance":  {xid: 79, gi: &gi, red: "79 gpu 1", blue: "79 gpu 1", notes: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.onGPU("red-1", "blue-1")
			f.live = append(f.live, lease.Lease{ID: "far-1", Place: lease.Place{GPUs: []gpu.UUID{"GPU-other"}}})
			f.leaseOf[7] = "red-1"
			f.node.GPUs[0].Instances = []gpu.Instance{
				{ID: 1, Compute: []gpu.ComputeInstance{{UUID: "MIG-blue-1"}}},
				{ID: gi, Compute: []gpu.ComputeInstance{{UUID: "MIG-red-1"}}},
			}
			if c.withEvent || c.gi != nil {
				f.XID(gpu.Event{GPU: gpuA, XID: c.xid, GI: c.gi, CI: c.ci})
				f.wait(2 * time.Second)
			}
			if c.withEvent {
				if red, blue := f.relations("red-1"), f.relations("blue-1"); len(red) != 1 || !slices.Equal(red, blue) {
					t.Errorf("before the process is known: %q and %q", red, blue)
				}
			}
			if c.gi == nil {
				f.line1(c.xid, c.pid)
			}
			f.wait(2 * time.Second)
			red, blue := strings.Join(f.relations("red-1"), ", "), strings.Join(f.relations("blue-1"), ", ")
			if red != c.red || blue != c.blue || f.relations("far-1") != nil {
				t.Errorf("recorded %q and %q, want %q and %q; of another GPU %q", red, blue, c.red, c.blue, f.relations("far-1"))
			}
			if n := len(f.notes["red-1"]) + len(f.notes["blue-1"]); n != c.notes || len(f.notes["far-1"]) > 0 {
				t.Errorf("the notices are %q, want %d", f.notes, c.notes)
			}
			for _, x := range f.recorded("red-1").XIDs {
				if x.GPU != string(gpuA) || x.Meaning == "" || x.Last.IsZero() {
					t.Errorf("it has %+v", x)
				}
			}
		})
	}
}

// A lease whose programs an error ended before it was read has it too, and one that ended long before has not.
func TestAnXIDIsRecordedOfALeaseThatJustEnded(t *testing.T) {
	f := newFixture(t)
	f.EndedLately = func(d time.Duration) []lease.Lease {
		if d > 10*time.Second {
			t.Errorf("leases of the last %s", d)
		}
		return []lease.Lease{{ID: "ended-1", Place: lease.Place{GPUs: []gpu.UUID{gpuA}}}}
	}
	f.line1(95, 0)
	if got := f.relations("ended-1"); !slices.Equal(got, []string{"95 gpu 1"}) {
		t.Errorf("recorded %q", got)
	}
}

// Of an error in an instance whose lease ended just before, the lease that has it now is not blamed: it may have been either, or, if the
// other one started after the error, was the one that ended.
func TestAnXIDIsNotThatOfTheNextLease(t *testing.T) {
	gi := uint32(2)
	for name, c := range map[string]struct {
		started     time.Duration // of the one that runs, after the error
		ended, next string
	}{
		"it ran already":        {-time.Hour, "13 possible 1", "13 possible 1"},
		"it started afterwards": {time.Millisecond, "13 caused 1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.node.GPUs[0].Instances = []gpu.Instance{{ID: gi, Compute: []gpu.ComputeInstance{{UUID: "MIG-2"}}}}
			place := lease.Place{GPUs: []gpu.UUID{gpuA}, Devices: []gpu.UUID{"MIG-2"}}
			f.EndedLately = func(time.Duration) []lease.Lease { return []lease.Lease{{ID: "ended-1", Place: place}} }
			f.live = []lease.Lease{{ID: "next-1", Place: place, Started: new(f.now.Add(c.started))}}
			f.XID(gpu.Event{GPU: gpuA, XID: 13, GI: &gi})
			f.wait(2 * time.Second)
			ended, next := strings.Join(f.relations("ended-1"), ", "), strings.Join(f.relations("next-1"), ", ")
			if ended != c.ended || next != c.next {
				t.Errorf("recorded %q and %q, want %q and %q", ended, next, c.ended, c.next)
			}
			if len(f.notes["next-1"]) > 0 {
				t.Errorf("the notices are %q", f.notes)
			}
		})
	}
}

// A lease whose programs the loss of its GPU ended has the loss, and no advice to stop.
func TestALossIsRecordedOfALeaseThatJustEnded(t *testing.T) {
	f := newFixture(t)
	f.EndedLately = func(time.Duration) []lease.Lease {
		return []lease.Lease{{ID: "ended-1", Place: lease.Place{GPUs: []gpu.UUID{gpuA}}}}
	}
	f.node.GPUs[0].Err = gpu.ErrLost
	f.Converge(&f.node)
	if n := len(f.recorded("ended-1").LostGPUs); n != 1 || len(f.notes) != 0 {
		t.Errorf("it has %d losses, and the notices are %q", n, f.notes)
	}
}

// A lost GPU is recorded of its leases and reported to their users once, whether an XID or the observation finds it; that it answers again
// is recorded too. A GPU that does not answer in time, and one without its driver, is not lost.
func TestALostGPUIsReportedToItsLeases(t *testing.T) {
	lostBy := map[string]func(*fixture){
		"an XID":           func(f *fixture) { f.line1(79, 0) },
		"the observation":  func(f *fixture) { f.node.GPUs[0].Err = gpu.ErrLost },
		"it is not found":  func(f *fixture) { f.node.GPUs[0].Err = gpu.ErrNotFound },
		"it is missing":    func(f *fixture) { f.node.Missing, f.node.GPUs = f.node.Identities(), nil },
		"it is slow":       func(f *fixture) { f.node.GPUs[0].Err = fmt.Errorf("it: %w", gpu.ErrTimeout) },
		"it is excluded":   func(f *fixture) { f.node.GPUs[0].Err = gpu.ErrStuck },
		"the worker rests": func(f *fixture) { f.node.GPUs[0].Err = gpu.ErrParked },
		"no worker starts": func(f *fixture) { f.node.GPUs[0].Err = fmt.Errorf("it: %w: it crashed, twice", gpu.ErrUnknown) },
		"the call ended":   func(f *fixture) { f.node.GPUs[0].Err = &gpu.Error{Op: "read", Err: context.Canceled} },
		"it waits":         func(f *fixture) { f.node.GPUs[0].Err = gpu.ErrResetRequired },
		"without a driver": func(f *fixture) { f.node.GPUs[0].Err, f.node.DriverErr = gpu.ErrNotLoaded, errors.New("no driver") },
		"another error":    func(f *fixture) { f.line1(31, 0) },
	}
	for name, lose := range lostBy {
		t.Run(name, func(t *testing.T) {
			lost := slices.Contains([]string{"an XID", "the observation", "it is not found", "it is missing"}, name)
			f := newFixture(t)
			f.onGPU("red-1", "blue-1")
			f.live = append(f.live, lease.Lease{ID: "far-1", Place: lease.Place{GPUs: []gpu.UUID{"GPU-other"}}})
			f.Converge(&f.node)
			lose(f)
			for range 3 {
				f.Converge(&f.node)
				f.now = f.now.Add(time.Minute)
			}
			for _, id := range []string{"red-1", "blue-1"} {
				l := f.recorded(id)
				if (len(l.LostGPUs) == 1) != lost || lost && (l.LostGPUs[0].Until != nil || l.LostGPUs[0].Reason == "" ||
					!l.LostGPUs[0].Since.Equal(time.Unix(1e9, 0)) || l.LostGPUs[0].GPU != string(gpuA)) {
					t.Errorf("lost %t: of %s is recorded %+v", lost, id, l.LostGPUs)
				}
				n := slices.DeleteFunc(slices.Clone(f.notes[id]), func(s string) bool { return !strings.Contains(s, " is lost: ") })
				if (len(n) == 1) != lost || lost && !strings.Contains(n[0], "'gpushare lease stop "+id+"'") {
					t.Errorf("lost %t: the notices of %s are %q", lost, id, f.notes[id])
				}
			}
			if len(f.recorded("far-1").LostGPUs)+len(f.notes["far-1"]) > 0 {
				t.Errorf("of another GPU: %+v", f.recorded("far-1"))
			}
			if name == "the observation" {
				if len(f.found) != 1 {
					t.Errorf("it answers again: %v", f.found)
				}
				f.node.GPUs[0].Err = nil
				f.Converge(&f.node)
				if len(f.found) != 2 {
					t.Errorf("it answers again: %v", f.found)
				}
			}
		})
	}
}

// An observation from before the XID does not say that a lost GPU answers again.
func TestAnOlderObservationDoesNotFindALostGPU(t *testing.T) {
	f := newFixture(t)
	f.onGPU("red-1")
	f.line1(79, 0)
	f.Converge(&f.node)
	if len(f.found) > 0 {
		t.Error("it answers again")
	}
	f.node.Epoch.Boot = "boot-2"
	f.Converge(&f.node)
	f.Converge(&f.node)
	if len(f.found) == 0 {
		t.Error("after a boot it does not answer")
	}
}
