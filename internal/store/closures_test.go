package store

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
)

// withoutList is a file of the last version that had no list of closures. That version wrote it.
func withoutList(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("../../testdata/state/format-2-without-closures.json")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// closedThere is what is closed in that file.
func closedThere() []Closure {
	minute := func(n int) time.Time { return at.Add(time.Duration(n) * time.Minute) }
	on := func(id gpu.UUID) Where { return Where{GPU: id} }
	instance := Where{GPU: "GPU-0", Instance: gpu.Placement{Start: 4, Size: 4}}
	return []Closure{
		{
			Kind:   ClosureMaintenance,
			By:     "root",
			Since:  minute(11),
			Reason: "driver 580",
			Maintenance: &MaintenanceRecord{
				Driver:        true,
				Parked:        true,
				Boot:          "boot",
				DriverVersion: "580.95.05",
				GPUs:          []gpu.Identity{{UUID: "GPU-0", Model: "NVIDIA A100"}},
			},
		},
		{
			Where:  on("GPU-1"),
			Kind:   ClosureHeld,
			Since:  minute(1),
			Reason: "cannot create 3g.20gb at 4: in use",
			Held:   &HeldRecord{Generation: 1},
		},
		{
			Where:  on("GPU-2"),
			Kind:   ClosureHeld,
			Since:  minute(2),
			Reason: "MIG mode waits for a boot",
			Held:   &HeldRecord{Generation: 1, Boot: "boot"},
		},
		{
			Where:  on("GPU-1"),
			Kind:   ClosureUnhealthy,
			Since:  minute(9),
			Reason: "XID 79 (the GPU is lost)",
			Health: &HealthRecord{State: "closed", XID: 79, Boot: "boot", Driver: "driver", Lost: true},
		},
		{
			Where:  on("GPU-4"),
			Kind:   ClosureUnhealthy,
			Since:  minute(10),
			Reason: "XID 63",
			Health: &HealthRecord{State: "testing", XID: 63, Failed: "rows", Boot: "boot", Driver: "driver", Bad: true},
		},
		{Where: on("GPU-1"), Kind: ClosureCordoned, By: "root", Since: minute(7), Reason: "its fan"},
		{Where: on("GPU-3"), Kind: ClosureCordoned, By: "alice", Since: minute(8)},
		{Where: on("GPU-3"), Kind: ClosureDrained, By: "root", Since: minute(3)},
		{Where: instance, Kind: ClosureDrained, By: "alice", Since: minute(4)},
		{Where: Where{GPU: "GPU-3", Tenant: "red"}, Kind: ClosureHeldBack, Since: minute(5), Faults: 3},
		{
			Where:  Where{GPU: "GPU-0", Instance: instance.Instance, Tenant: "blue"},
			Kind:   ClosureHeldBack,
			Since:  minute(6),
			Faults: 4,
		},
	}
}

// fields are the values of a file by their names.
func fields(t *testing.T, file []byte) map[string]any {
	t.Helper()
	_, content, err := unseal(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(content, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// written is a file with these values.
func written(t *testing.T, values map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := json.Marshal(values["epoch"])
	if err != nil {
		t.Fatal(err)
	}
	generation := uint64(values["accepted"].(map[string]any)["generation"].(float64))
	file, err := seal(header{Format: Format, Generation: generation, Epoch: epoch}, append(b, '\n'))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// What a version without the list closed is in the list, always in the same order. A file with the list has all that such a version
// reads: after a downgrade nothing that was closed is open, and what it opens or closes then is so after the next upgrade.
func TestClosuresOverVersions(t *testing.T) {
	t.Parallel()
	older := withoutList(t)
	for range 20 {
		s, err := unmarshal(older)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(closedThere(), s.Closures); diff != "" {
			t.Fatalf("the list (-want +got):\n%s", diff)
		}
	}
	s, _ := unmarshal(older)
	file, err := marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	was, now := fields(t, older), fields(t, file)
	if now["closures"] == nil || was["closures"] != nil {
		t.Fatal("the list is not in the file, or was before")
	}
	delete(now, "closures") // No field of the version without the list.
	if diff := cmp.Diff(was, now); diff != "" {
		t.Errorf("what the older version reads (-want +got):\n%s", diff)
	}
	cordoned := maps.Clone(now["cordoned"].(map[string]any))
	delete(cordoned, "GPU-1")
	cordoned["GPU-4"] = map[string]any{"by": "bob", "since": "2026-11-21T10:00:00Z"}
	now["cordoned"] = cordoned
	back, err := unmarshal(written(t, now))
	if err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(closedThere(), func(c Closure) bool { return c.Kind == ClosureCordoned && c.GPU == "GPU-1" })
	at := slices.IndexFunc(want, func(c Closure) bool { return c.Kind == ClosureCordoned && c.GPU == "GPU-3" })
	want = slices.Insert(want, at+1, Closure{
		Where: Where{GPU: "GPU-4"},
		Kind:  ClosureCordoned,
		By:    "bob",
		Since: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC),
	})
	if diff := cmp.Diff(want, back.Closures); diff != "" {
		t.Errorf("after the older version has changed it (-want +got):\n%s", diff)
	}
}

// The daemon is killed, or the power fails, before each operation of the first write after an upgrade, and of the next one: what was
// closed is closed, what is being closed or opened is either, and nothing else is in the list.
func TestKilledWhileClosing(t *testing.T) {
	t.Parallel()
	more := Closure{Where: Where{GPU: "GPU-9"}, Kind: ClosureCordoned, By: "root", Since: at}
	before := closedThere()
	closed := append(slices.Clone(before), more)
	images := 0
	for _, from := range []string{"an older version", "this version"} {
		for cut, acknowledged := 1, false; !acknowledged; cut++ {
			d := newDisk()
			old := &inode{data: withoutList(t), safe: withoutList(t)}
			d.names[current], d.durable[current] = old, old
			s, _, err := open(d)
			if err != nil {
				t.Fatal(err)
			}
			was, want := before, closed
			if from == "this version" {
				if err := s.Update(func(s *State) error { s.Closures = append(s.Closures, more); return nil }); err != nil {
					t.Fatal(err)
				}
				was, want = closed, before
			}
			d.fail, d.dead = d.op+cut, true
			acknowledged = s.Update(func(s *State) error { s.Closures = slices.Clone(want); return nil }) == nil
			d.afterPowerCut(func(left *disk) {
				images++
				again, r, err := open(left)
				if err != nil || r.Fresh || r.Lost || r.FellBack {
					t.Fatalf("%s, cut before operation %d: %+v, %v", from, cut, r, err)
				}
				got := again.State().Closures
				if !cmp.Equal(got, want) && (acknowledged || !cmp.Equal(got, was)) {
					t.Fatalf("%s, cut before operation %d (acknowledged: %v): %s", from, cut, acknowledged, cmp.Diff(want, got))
				}
			})
		}
	}
	if images < 20 {
		t.Errorf("only %d outcomes were checked", images)
	}
}

// Nothing is written at the upgrade itself, and only once after it.
func TestAnUpgradeWritesOnce(t *testing.T) {
	t.Parallel()
	d := newDisk()
	d.names[current] = &inode{data: withoutList(t)}
	s, _, err := open(d)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Update(func(*State) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if s.Writes() > 1 || bytes.Contains(d.names[current].data, []byte(`"closures"`)) != (s.Writes() == 1) {
		t.Errorf("%d writes of\n%s", s.Writes(), d.names[current].data)
	}
	if err := s.Update(accept("next")); err != nil || !bytes.Contains(d.names[current].data, []byte(`"closures"`)) {
		t.Errorf("%v: %s", err, d.names[current].data)
	}
}
