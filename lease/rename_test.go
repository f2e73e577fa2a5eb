package lease

import (
	"context"
	"slices"
	"testing"

	"github.com/gpushare/gpushare/internal/rename"
)

// ofGeneration are the renames of vision to imaging and of its grant train to large, by the spec of one generation.
func ofGeneration(n uint64) rename.List {
	return rename.List{
		{Generation: n, From: rename.Name{Tenant: "vision"}, To: rename.Name{Tenant: "imaging"}},
		{Generation: n, From: rename.Name{Tenant: "vision", Grant: "train"}, To: rename.Name{Tenant: "imaging", Grant: "large"}},
	}
}

// labRenamed is the lab under the names of ofGeneration.
func labRenamed(n uint64) View {
	v := lab()
	v.Generation = n
	for i := range v.Grants {
		v.Grants[i].rename(ofGeneration(n))
	}
	return v
}

// started is a lease that runs.
func started(t *testing.T, tab *Table, tenant, grant string) Lease {
	t.Helper()
	k, _ := mustSubmit(t, tab, tenant, grant)
	l, _, err := tab.Start(t.Context(), k.ID(), Process{PID: 4711, Start: 1})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func keyOf(t *testing.T, tab *Table, id string) (key, slice Key) {
	t.Helper()
	l, ok := tab.Get(id)
	if !ok {
		t.Fatalf("lease %s is not in the table", id)
	}
	return l.Terms.Key(), l.SliceKey()
}

// Leases, requests that wait, what was used lately and places that are kept free go on under the new names. The leases stay in the cgroup
// slices of the former names, and those that start meanwhile join them there: the limits of the tenant hold for all together.
func TestRename(t *testing.T) {
	v := lab()
	v.Grants[0].Spec.Reserved = true
	tab, _ := table(t, v)
	train, dev := started(t, tab, "vision", "train"), started(t, tab, "vision", "dev")
	waits := queue(t, tab, "vision", "train")
	tab.lately.restore(&Lately{At: epoch, Users: []UsedLately{{"vision", 1001, 5}}})

	under := tab.LiveUnder(ofGeneration(2))
	if under[0].Terms.Key() != (Key{"imaging", "large"}) || tab.Live()[0].Terms.Key() != (Key{"vision", "train"}) {
		t.Errorf("what would be is %v, and what is %v", under[0].Terms.Key(), tab.Live()[0].Terms.Key())
	}
	accepted := false
	tab.Rename(ofGeneration(2), 2, func() { accepted = true })
	tab.Rename(ofGeneration(2), 2, nil) // Not again.
	if key, slice := keyOf(t, tab, train.ID); key != (Key{"imaging", "large"}) || slice != (Key{"vision", "train"}) {
		t.Errorf("the lease is of %v in the slice of %v", key, slice)
	}
	if key, slice := keyOf(t, tab, dev.ID); key != (Key{"imaging", "dev"}) || slice != (Key{"vision", "dev"}) || !accepted {
		t.Errorf("the other lease is of %v in the slice of %v, accepted %v", key, slice, accepted)
	}
	if got := tab.lately.list().Users; !slices.Equal(got, []UsedLately{{"imaging", 1001, 5}}) {
		t.Errorf("used lately: %v", got)
	}
	if len(tab.reserved[Key{"imaging", "large"}]) == 0 || len(tab.reserved[Key{"vision", "train"}]) > 0 {
		t.Errorf("kept free are %v", tab.reserved)
	}
	other := started(t, tab, "imaging", "dev") // Before the node was observed under the new spec.
	if _, slice := keyOf(t, tab, other.ID); slice != (Key{"vision", "dev"}) {
		t.Errorf("a new lease is in the slice of %v", slice)
	}
	v = labRenamed(2)
	v.Grants[0].Spec.Reserved = true
	tab.Update(v)
	if err := tab.Ended(t.Context(), train.ID, ""); err != nil {
		t.Fatal(err)
	}
	if key, slice := keyOf(t, tab, waits.ID()); key != (Key{"imaging", "large"}) || slice != (Key{"vision", "large"}) {
		t.Errorf("the request that waited is of %v in the slice of %v", key, slice)
	}
	for _, id := range []string{dev.ID, other.ID} {
		if err := tab.Ended(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
	waits.Cancel()
	last := started(t, tab, "imaging", "dev")
	if _, slice := keyOf(t, tab, last.ID); slice != (Key{"imaging", "dev"}) {
		t.Errorf("after all have ended a new lease is in the slice of %v", slice)
	}
}

// A lease that was renamed and back is in the slice of its own name.
func TestRenameBack(t *testing.T) {
	tab, _ := table(t, lab())
	l := started(t, tab, "vision", "train")
	back := append(ofGeneration(2),
		rename.Rename{Generation: 3, From: rename.Name{Tenant: "imaging"}, To: rename.Name{Tenant: "vision"}},
		rename.Rename{
			Generation: 3, From: rename.Name{Tenant: "imaging", Grant: "large"}, To: rename.Name{Tenant: "vision", Grant: "train"},
		})
	tab.Rename(back[:2], 2, nil)
	tab.Rename(back, 3, nil)
	if now, _ := tab.Get(l.ID); now.Terms.Key() != (Key{"vision", "train"}) || now.Slice != (Key{}) {
		t.Errorf("the lease is of %v in the slice of %v", now.Terms.Key(), now.Slice)
	}
}

// The daemon may end between the spec and the record of the leases: what is read has the names that it had, and gets the new ones once.
func TestRenameAfterARestart(t *testing.T) {
	tab, _ := table(t, lab())
	l := started(t, tab, "vision", "train")
	record := func(tab *Table) []byte {
		t.Helper()
		b, err := tab.State()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	restored := func(b []byte, recorded rename.List, generation uint64) *Table {
		t.Helper()
		tab := New(Config{Isolation: &fakeIsolation{}})
		tab.Rename(recorded, generation, nil) // The spec is in force before the leases are read.
		if err := tab.Restore(b); err != nil {
			t.Fatal(err)
		}
		return tab
	}
	recorded := ofGeneration(2)
	late := restored(record(tab), recorded, 2)
	if key, slice := keyOf(t, late, l.ID); key != (Key{"imaging", "large"}) || slice != (Key{"vision", "train"}) {
		t.Errorf("after the restart the lease is of %v in the slice of %v", key, slice)
	}
	// The name is given again, to another tenant: what has it since is not renamed.
	tab.Rename(nil, 4, nil)
	if key, _ := keyOf(t, restored(record(tab), recorded, 4), l.ID); key != (Key{"vision", "train"}) {
		t.Errorf("a lease of after the rename is of %v", key)
	}
	if key, slice := keyOf(
		t,
		restored(record(late), recorded, 2),
		l.ID,
	); key != (Key{"imaging", "large"}) ||
		slice != (Key{"vision", "train"}) {
		t.Errorf("after another restart the lease is of %v in the slice of %v", key, slice)
	}
}

// renamingRequester is a user of imaging, which is renamed while the directory is queried about its former name.
type renamingRequester struct{ tab *Table }

func (r *renamingRequester) Standing(string) Standing { return Standing{} }

func (r *renamingRequester) Confirm(_ context.Context, tenant string) Standing {
	r.tab.Rename(ofGeneration(2), 2, nil)
	if tenant != "imaging" {
		return Standing{Denied: "there is no tenant " + tenant}
	}
	return Standing{}
}

func TestRenameWhileTheDirectoryIsQueried(t *testing.T) {
	tab, _ := table(t, lab())
	k := requestOf(t, tab, &renamingRequester{tab})
	if _, _, err := tab.Start(t.Context(), k.ID(), Process{PID: 4711, Start: 1}); err != nil {
		t.Errorf("a lease of a tenant that got another name does not start: %v", err)
	}
}

// What the request of a keyed lease named has the new names too, so that it may be repeated; what it did not name stays unnamed. A copy
// from before keeps the former names.
func TestRenameOfKeyedLease(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]EngineTerms{"slurm:1": {Tenant: "vision", Grant: "train"}, "slurm:2": {Account: "physics"}} {
		tab, _ := table(t, lab())
		k, err := tab.Submit(Request{
			Tenant: "vision", Grant: "train", Admin: true, Origin: OriginAttached, Engine: &Engine{Key: key, Terms: want},
		})
		if err != nil {
			t.Fatal(err)
		}
		before, _ := tab.Get(k.ID())
		tab.Rename(ofGeneration(2), 2, nil)
		l, _ := tab.Get(k.ID())
		was, now := &before.Engine.Terms, &l.Engine.Terms
		if was.Tenant != want.Tenant || was.Grant != want.Grant {
			t.Errorf("the copy from before names %s/%s", was.Tenant, was.Grant)
		}
		if want.Tenant != "" {
			want.Tenant, want.Grant = "imaging", "large"
		}
		if now.Tenant != want.Tenant || now.Grant != want.Grant || now.Account != want.Account {
			t.Errorf("it names %+v, want %+v", *now, want)
		}
	}
}
