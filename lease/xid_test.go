package lease

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

// reported is an XID of a GPU, so many seconds after the epoch of the tests.
func reported(xid uint64, relation string, seconds int) api.LeaseXID {
	return api.LeaseXID{
		XID: xid, Meaning: "an error", GPU: "GPU-0", Relation: relation, Last: epoch.Add(time.Duration(seconds) * time.Second),
	}
}

// XIDs of one number are counted together, those that a lease caused apart from those that it may have; only the last kinds are kept.
func TestTheXIDsOfALeaseAreBounded(t *testing.T) {
	var l Lease
	for i := range 1000 {
		l.RecordXID(reported(31, api.XIDCaused, i))
		l.RecordXID(reported(31, api.XIDPossible, i))
	}
	if len(l.XIDs) != 2 || l.XIDs[0].Count != 1000 || l.XIDs[1].Count != 1000 || !l.XIDs[1].Last.Equal(epoch.Add(999*time.Second)) {
		t.Fatalf("it has %+v", l.XIDs)
	}
	was := l.clone()
	if !l.RetractXID(reported(31, api.XIDPossible, 0)) || l.XIDs[1].Count != 999 || was.XIDs[1].Count != 1000 {
		t.Errorf("one was taken back: %+v, and in a copy %+v", l.XIDs, was.XIDs)
	}
	if l.RetractXID(reported(32, api.XIDPossible, 0)) {
		t.Error("what was not recorded was taken back")
	}
	for i := range 100 {
		l.RecordXID(reported(uint64(i), api.XIDOfGPU, i))
	}
	if len(l.XIDs) != maxXIDs || l.XIDs[maxXIDs-1].XID != 99 {
		t.Errorf("it keeps %+v", l.XIDs)
	}
	l.RetractXID(reported(99, api.XIDOfGPU, 0))
	if len(l.XIDs) != maxXIDs-1 || l.XIDs[maxXIDs-2].XID != 98 {
		t.Errorf("the only one was taken back: %+v", l.XIDs)
	}
	for i := range 100 {
		if !l.RecordLost(api.LostGPU{GPU: "GPU-0", Since: epoch}) || l.RecordLost(api.LostGPU{GPU: "GPU-0", Since: epoch}) {
			t.Fatal("a loss is not recorded once")
		}
		if !l.recordFound("GPU-0", epoch.Add(time.Duration(i))) || l.recordFound("GPU-0", epoch) {
			t.Fatal("that it answers again is not recorded once")
		}
	}
	if len(l.LostGPUs) != maxLostGPUs {
		t.Errorf("it keeps %d losses", len(l.LostGPUs))
	}
}

// What happened to a lease is there after a restart, and a file of a version without it is read.
func TestWhatHappenedToALeaseIsRestored(t *testing.T) {
	v := lab()
	tab, _ := table(t, v)
	run, _ := mustSubmit(t, tab, "vision", "dev")
	if _, _, err := tab.Start(t.Context(), run.ID(), Process{42, 7}); err != nil {
		t.Fatal(err)
	}
	old, err := tab.State()
	if err != nil || strings.Contains(string(old), "xids") || strings.Contains(string(old), "lost_gpus") {
		t.Fatalf("a lease without trouble is written as %s, %v", old, err)
	}
	changed, found := tab.Revise(run.ID(), func(l *Lease) bool {
		l.RecordXID(reported(31, api.XIDCaused, 1))
		return l.RecordLost(api.LostGPU{GPU: "GPU-0", Since: epoch, Reason: "the GPU is lost"})
	})
	if !changed || !found {
		t.Fatal("it is not recorded")
	}
	if _, found := tab.Revise("another", func(*Lease) bool { t.Error("another lease"); return true }); found {
		t.Error("there is another lease")
	}
	saved, err := tab.State()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"of this version": saved, "of a version without it": old} {
		again := New(Config{Isolation: &fakeIsolation{}})
		if err := again.Restore(b); err != nil {
			t.Fatal(err)
		}
		l, _ := again.Get(run.ID())
		w := l.Wire()
		if name != "of this version" {
			if w.XIDs != nil || w.LostGPUs != nil || w.GPULost() != nil {
				t.Errorf("%s: %+v", name, w)
			}
			continue
		}
		x := reported(31, api.XIDCaused, 1)
		x.Count = 1
		want := []api.LostGPU{{GPU: "GPU-0", Since: epoch, Reason: "the GPU is lost"}}
		if d := cmp.Diff([]api.LeaseXID{x}, w.XIDs) + cmp.Diff(want, w.LostGPUs); d != "" || w.GPULost() == nil {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if !again.Found("GPU-0", epoch) || again.Found("GPU-0", epoch) || again.Found("GPU-1", epoch) {
			t.Error("that it answers again is not recorded once")
		}
		l, _ = again.Get(run.ID())
		if w := l.Wire(); w.GPULost() != nil || w.LostGPUs[0].Until == nil {
			t.Errorf("it answers again: %+v", w.LostGPUs)
		}
	}
}
