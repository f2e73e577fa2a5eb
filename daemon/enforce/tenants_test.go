package enforce

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/internal/store"
)

// call makes a request of an administrator for a tenant.
func call(t *testing.T, handle func(*server.Call) error, tenant string) (out api.TenantFreezeResult, err error) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/", nil).WithContext(t.Context())
	r.SetPathValue("name", tenant)
	w := httptest.NewRecorder()
	if err := handle(&server.Call{W: w, R: r, Caller: &server.Caller{Name: "root", Admin: true}}); err != nil {
		return out, err
	}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	return out, nil
}

// withTenants adds tenants to the spec in force.
func (w *fixture) withTenants(enforce api.OnOff, mode string) {
	w.enforce(enforce, mode)
	want := *w.State.Desired()
	want.Spec = &api.Spec{Node: api.NodeSpec{Enforce: enforce}, Tenants: []api.TenantSpec{{Name: "red"}, {Name: "blue"}}}
	w.State.SetDesired(&want)
}

// kindOf returns the kind of an error; empty when there is none.
func kindOf(err error) api.Kind {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Kind
	}
	return ""
}

// frozenFor returns what a lease is frozen for.
func (w *fixture) frozenFor(id string) []cgroup.FreezeReason { return fakeFreezer{w.port}.Reasons(id) }

// The scheduler of GPU time does not undo the freeze of an administrator, and lets the other lease run.
func TestAFrozenTenantGetsNoTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, blue := twoTimeSlicedLeases(t, "on", func(w *fixture) { w.withTenants("on", api.ModeTimeslice) })
		got, err := call(t, w.PostTenantFreeze, "red")
		if err != nil || !got.Changed || got.Frozen == nil || len(got.Leases) != 1 ||
			got.Leases[0] != (api.LeaseFreeze{Lease: w.lease, Frozen: true}) {
			t.Fatalf("it answered %+v, %v", got, err)
		}
		w.runUntil(12 * time.Second)
		for range 800 { // several rounds
			elapse(10 * time.Millisecond)
			synctest.Wait()
			if frozen := w.port.frozenLeases(); len(frozen) != 1 || frozen[0] != w.lease {
				t.Fatalf("%v are frozen, want only %s", frozen, w.lease)
			}
		}
		if got := w.frozenFor(w.lease); !slices.Equal(got, []cgroup.FreezeReason{cgroup.ForAdministrator}) {
			t.Errorf("it is frozen for %v", got)
		}
		l := api.Lease{ID: w.lease}
		if w.Fill(&l, true); !slices.Equal(l.FrozenFor, []string{"an administrator"}) {
			t.Errorf("the status says %q", l.FrozenFor)
		}
		if _, err := call(t, w.PostTenantThaw, "red"); err != nil {
			t.Fatal(err)
		}
		w.runUntil(30 * time.Second)
		if _, leases := frozenOverTwoRounds(w); !leases[w.lease] || !leases[blue] {
			t.Errorf("only %v take turns after the thaw", leases)
		}
		w.end()
	})
}

// A tenant is still frozen after a restart of the daemon. A lease that uses too much GPU memory is still frozen when its
// tenant is thawed.
func TestTenantsRemainFrozen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, "notify")
		w.withTenants("on", api.ModeExclusive)
		w.begin(t)
		if _, err := call(t, w.PostTenantFreeze, "red"); err != nil {
			t.Fatal(err)
		}
		if got, err := call(t, w.PostTenantFreeze, "red"); err != nil || got.Changed {
			t.Errorf("the second freeze: %+v, %v", got, err)
		}
		if err := w.MayStart("red"); kindOf(err) != api.KindUnavailable {
			t.Errorf("a lease of a frozen tenant: %v", err)
		}
		if err := w.MayStart("blue"); err != nil {
			t.Errorf("a lease of another tenant: %v", err)
		}
		again := &FrozenTenants{RunDir: w.Tenants.RunDir}
		if err := again.Load(); err != nil || again.get("red") == nil || again.get("red").By != "root" || again.get("blue") != nil {
			t.Errorf("after a restart red is frozen: %+v, %v", again.get("red"), err)
		}
		f := fakeFreezer{w.port}
		if err := f.Freeze(t.Context(), w.lease, cgroup.ForGPUMemory, time.Hour); err != nil {
			t.Fatal(err)
		}
		// The thaw watchdog, or another program, has thawed it.
		if err := f.Thaw(t.Context(), w.lease, cgroup.ForAdministrator); err != nil {
			t.Fatal(err)
		}
		w.runUntil(3 * time.Second)
		if got := w.frozenFor(w.lease); !slices.Contains(got, cgroup.ForAdministrator) {
			t.Errorf("it is frozen for %v: it was not frozen again", got)
		}
		got, err := call(t, w.PostTenantThaw, "red")
		if err != nil || got.Frozen != nil || len(got.Leases) != 1 || !got.Leases[0].Frozen ||
			got.Leases[0].Reason != "it is frozen for GPU memory" {
			t.Errorf("the thaw answered %+v, %v", got, err)
		}
		if err := again.Load(); err != nil || again.get("red") != nil {
			t.Errorf("after the thaw and a restart red is frozen: %+v, %v", again.get("red"), err)
		}
		w.end()
	})
}

// What cannot be frozen is refused, and changes nothing.
func TestFreezesOfTenantsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, tenant string
		change       func(*fixture)
		kind         api.Kind
	}{
		{"an unknown tenant", "green", func(*fixture) {}, api.KindNotFound},
		{"a node that only observes", "red", func(w *fixture) { w.withTenants("observe", api.ModeExclusive) }, api.KindConflict},
		{"nothing can be frozen", "red", func(w *fixture) { w.Freezer = nil }, api.KindConflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, "notify")
				w.withTenants("on", api.ModeExclusive)
				c.change(w)
				if _, err := call(t, w.PostTenantFreeze, c.tenant); kindOf(err) != c.kind {
					t.Errorf("it answered %v", err)
				}
				if w.Tenants.any() || len(w.port.frozenLeases()) > 0 {
					t.Error("something is frozen")
				}
			})
		})
	}
}

// A tenant that gets another name stays frozen under it, also when the daemon ended before it recorded that, and not under the former one.
func TestAFrozenTenantIsRenamed(t *testing.T) {
	t.Parallel()
	dir := store.RunDir(t.TempDir())
	recorded := rename.List{{Generation: 2, From: rename.Name{Tenant: "red"}, To: rename.Name{Tenant: "crimson"}}}
	frozen := FrozenTenants{RunDir: dir, Wake: loop.NewWake()}
	for _, name := range []string{"red", "blue", "gone"} {
		if _, err := frozen.set(name, &tenantFreeze{api.TenantFreeze{By: "root"}, 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := frozen.Rename(recorded, 2); err != nil || frozen.get("crimson") == nil || frozen.get("red") == nil {
		t.Fatalf("while leases get the name it is frozen under both: %+v, %v", frozen.byName, err)
	}
	again := FrozenTenants{RunDir: dir, Wake: loop.NewWake()}
	if err := errors.Join(again.Load(), again.Rename(recorded, 2), again.Forget(recorded, 2)); err != nil {
		t.Fatal(err)
	}
	if again.get("crimson") == nil || again.get("red") != nil || again.get("blue") == nil || again.get("gone") == nil {
		t.Errorf("after it the frozen tenants are %+v", again.byName)
	}
	last := FrozenTenants{RunDir: dir, Wake: loop.NewWake()}
	if err := last.Load(); err != nil || last.get("crimson") == nil || last.get("red") != nil {
		t.Errorf("recorded are %+v, %v", last.byName, err)
	}
}

// The freeze of a tenant follows no rename from before it had the name: that was of another tenant. A record of a build that did not know
// since when the tenant has its name lacks at most the renames of the spec in force.
func TestAFreezeFollowsOnlyTheRenamesOfItsTenant(t *testing.T) {
	t.Parallel()
	recorded := rename.List{{Generation: 2, From: rename.Name{Tenant: "red"}, To: rename.Name{Tenant: "crimson"}}}
	for name, c := range map[string]struct {
		file       string
		generation uint64
		frozen     string
	}{
		"another tenant that had its name was renamed": {`{"red": {"by": "root", "named": 3}}`, 4, "red"},
		"it was renamed":                   {`{"red": {"by": "root", "named": 1}}`, 4, "crimson"},
		"not recorded, and renamed before": {`{"red": {"by": "root"}}`, 4, "red"},
		"not recorded, and renamed now":    {`{"red": {"by": "root"}}`, 2, "crimson"},
		"of a state that is lost":          {`{"red": {"by": "root", "named": 50}}`, 2, "crimson"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := store.RunDir(t.TempDir())
			if err := dir.Write(frozenTenantsFile, []byte(c.file)); err != nil {
				t.Fatal(err)
			}
			frozen := FrozenTenants{RunDir: dir, Wake: loop.NewWake()}
			if err := errors.Join(frozen.Load(), frozen.Rename(recorded, c.generation), frozen.Forget(recorded, c.generation)); err != nil {
				t.Fatal(err)
			}
			if len(frozen.byName) != 1 || frozen.get(c.frozen) == nil {
				t.Errorf("the frozen tenants are %+v, want only %s", frozen.byName, c.frozen)
			}
		})
	}
}

// A freeze is recorded with the generation of the spec that has its tenant.
func TestAFreezeIsOfTheTenantOfItsSpec(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, "notify")
		w.withTenants("on", api.ModeExclusive)
		want := *w.State.Desired()
		want.Generation = 3
		w.State.SetDesired(&want)
		w.begin(t)
		if _, err := call(t, w.PostTenantFreeze, "red"); err != nil {
			t.Fatal(err)
		}
		recorded := rename.List{{Generation: 2, From: rename.Name{Tenant: "red"}, To: rename.Name{Tenant: "blue"}}}
		again := FrozenTenants{RunDir: w.Tenants.RunDir, Wake: loop.NewWake()}
		if err := errors.Join(again.Load(), again.Rename(recorded, 4), again.Forget(recorded, 4)); err != nil {
			t.Fatal(err)
		}
		if again.get("red") == nil || again.get("blue") != nil {
			t.Errorf("after red was removed the frozen tenants are %+v", again.byName)
		}
		w.end()
	})
}
