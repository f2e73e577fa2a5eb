package enforce

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// frozenTenantsFile has the frozen tenants, until the next boot: no lease survives a boot.
const frozenTenantsFile = "frozen-tenants.json"

// FrozenTenants are the tenants that administrators froze. They are frozen again when the daemon starts; while it does not
// run, none of their processes stays frozen.
type FrozenTenants struct {
	RunDir store.RunDir
	Wake   loop.Wake // a lease or the spec changed: leases may have to be frozen or thawed

	mu     locks.Mutex[locks.Leaf] // guards byName, and the order of its writes
	byName map[string]tenantFreeze
}

// tenantFreeze is the freeze of a tenant, as it is recorded.
type tenantFreeze struct {
	api.TenantFreeze
	// Named is the generation of the spec that has the tenant under this name: a rename of before was of another tenant that had it.
	Named uint64 `json:"named,omitempty"`
}

// now is what the tenant is called under the renames that are recorded; generation is of the spec in force.
func (f *tenantFreeze) now(name string, recorded rename.List, generation uint64) string {
	if f.Named == 0 || f.Named > generation { // Of a build that did not record it, or of a state that is lost: it had the name just before.
		return recorded.In(generation).Tenant(name)
	}
	return recorded.After(f.Named).Tenant(name)
}

// Load reads the tenants that were frozen before the daemon was restarted.
func (t *FrozenTenants) Load() error {
	b, damage, err := t.RunDir.Read(frozenTenantsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName = nil
	if err = cmp.Or(err, damage.Err()); err == nil {
		err = json.Unmarshal(b, &t.byName)
	}
	if err == nil && damage != nil {
		err = errors.New(damage.Reason + ": the one before it is used")
	}
	if err != nil {
		return fmt.Errorf("cannot read which tenants are frozen: %w", err)
	}
	return nil
}

// set freezes a tenant, or thaws it if freeze is nil. It reports whether something changed, after it was recorded.
func (t *FrozenTenants) set(tenant string, freeze *tenantFreeze) (changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, was := t.byName[tenant]
	if was == (freeze != nil) {
		return false, nil
	}
	if t.byName == nil {
		t.byName = map[string]tenantFreeze{}
	}
	if freeze != nil {
		t.byName[tenant] = *freeze
	} else {
		delete(t.byName, tenant)
	}
	b, err := json.Marshal(t.byName)
	if err == nil {
		err = t.RunDir.Write(frozenTenantsFile, b)
	}
	if err == nil {
		t.Wake.Set() // The freezes of a tenant are compared every second from now on.
		return true, nil
	}
	if was {
		t.byName[tenant] = old
	} else {
		delete(t.byName, tenant)
	}
	return false, state.Unrecorded("which tenants are frozen", string(t.RunDir), err)
}

// Rename freezes tenants under the names that they have in the spec of a generation. recorded are all renames. The former names stay
// until Forget: leases are compared by those that they have.
func (t *FrozenTenants) Rename(recorded rename.List, generation uint64) error {
	return t.update(func(name string, f tenantFreeze) {
		if now := f.now(name, recorded, generation); now != name {
			t.byName[now] = tenantFreeze{f.TenantFreeze, generation}
		}
	})
}

// Forget drops the former names that Rename left.
func (t *FrozenTenants) Forget(recorded rename.List, generation uint64) error {
	return t.update(func(name string, f tenantFreeze) {
		if f.now(name, recorded, generation) != name {
			delete(t.byName, name)
		}
	})
}

// update calls change with each frozen tenant, and records what it changed.
func (t *FrozenTenants) update(change func(name string, f tenantFreeze)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := maps.Clone(t.byName)
	for name, f := range was {
		change(name, f)
	}
	if maps.Equal(was, t.byName) {
		return nil
	}
	b, err := json.Marshal(t.byName)
	if err == nil {
		err = t.RunDir.Write(frozenTenantsFile, b)
	}
	if err != nil {
		return state.Unrecorded("which tenants are frozen", string(t.RunDir), err)
	}
	return nil
}

// Revalidate writes the record again if another program has removed it: after a restart of the daemon no tenant would be frozen.
func (t *FrozenTenants) Revalidate() (lost []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byName) == 0 {
		return nil, nil
	}
	name := t.RunDir.Path(frozenTenantsFile)
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	b, err := json.Marshal(t.byName)
	if err == nil {
		err = t.RunDir.Write(frozenTenantsFile, b)
	}
	return []string{name}, err
}

// get returns who froze a tenant; nil if it is not frozen.
func (t *FrozenTenants) get(tenant string) *api.TenantFreeze {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f, ok := t.byName[tenant]; ok {
		return &f.TenantFreeze
	}
	return nil
}

func (t *FrozenTenants) any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byName) > 0
}

// FrozenTenant returns who froze a tenant; nil if it is not frozen.
func (en *Enforcer) FrozenTenant(tenant string) *api.TenantFreeze { return en.Tenants.get(tenant) }

// MayStart returns why no lease of a tenant starts.
func (en *Enforcer) MayStart(tenant string) error {
	f := en.Tenants.get(tenant)
	if f == nil {
		return nil
	}
	return &api.Error{
		Kind:    api.KindUnavailable,
		Message: fmt.Sprintf("cannot start a lease: %s froze tenant %s at %s", f.By, tenant, f.Since.Format(time.DateTime)),
		Hint:    "an administrator thaws it with 'gpushare tenant thaw " + tenant + "'",
	}
}

// PostTenantFreeze freezes all leases of a tenant until PostTenantThaw.
func (en *Enforcer) PostTenantFreeze(c *server.Call) error {
	name, want := c.R.PathValue("name"), en.State.Desired()
	if err := knownTenant(want, name); err != nil {
		return err
	}
	if err := en.canFreeze(); err != nil {
		return &api.Error{
			Kind:    api.KindConflict,
			Message: fmt.Sprintf("cannot freeze tenant %s: %s", name, err),
			Hint:    "'gpushare doctor' says what is missing",
		}
	}
	freeze := &tenantFreeze{api.TenantFreeze{By: c.Caller.Name, Since: en.Now()}, want.Generation}
	return en.change(c, name, freeze, "tenant.frozen", "froze tenant "+name)
}

// PostTenantThaw ends the freeze of PostTenantFreeze. A lease that is frozen for another reason too stays frozen.
func (en *Enforcer) PostTenantThaw(c *server.Call) error {
	name := c.R.PathValue("name")
	if en.Tenants.get(name) == nil { // A tenant that was removed from the spec may still be frozen.
		if err := knownTenant(en.State.Desired(), name); err != nil {
			return err
		}
	}
	return en.change(c, name, nil, "tenant.thawed", "thawed tenant "+name)
}

// change freezes a tenant, or thaws it if freeze is nil, and answers with its leases.
func (en *Enforcer) change(c *server.Call, name string, freeze *tenantFreeze, event, text string) error {
	ctx, err := server.GoOn(c.Ctx())
	if err != nil {
		return err
	}
	changed, err := en.Tenants.set(name, freeze)
	if err != nil {
		return err
	}
	if changed {
		en.Events.Publish(api.Event{Kind: event, Tenant: name, Message: c.Caller.Name + " " + text})
	}
	c.Note.Text = text
	if !changed {
		c.Note.Text = "no change"
	}
	out := api.TenantFreezeResult{
		SchemaVersion: 1,
		Tenant:        name,
		Frozen:        en.Tenants.get(name),
		Changed:       changed,
		Leases:        []api.LeaseFreeze{},
	}
	for _, l := range en.applyTenantFreezes(ctx) {
		if l.tenant == name {
			out.Leases = append(out.Leases, l.LeaseFreeze)
		}
	}
	en.Invalidate()
	return c.Reply(http.StatusOK, out)
}

func knownTenant(want *state.Desired, name string) error {
	if want.Spec != nil && slices.ContainsFunc(want.Spec.Tenants, func(t api.TenantSpec) bool { return t.Name == name }) {
		return nil
	}
	return &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("there is no tenant %q", name),
		Hint:    "'gpushare tenant list' shows them",
	}
}

// canFreeze returns why nothing can be frozen.
func (en *Enforcer) canFreeze() error {
	switch {
	case en.Freezer == nil:
		return errors.New("nothing can be frozen on this host")
	case !en.State.Desired().Enforcing():
		return errors.New("the node only observes")
	}
	return en.Freezer.Ready()
}

// tenantLease is what became of a lease.
type tenantLease struct {
	tenant string
	api.LeaseFreeze
}

// applyTenantFreezes freezes the leases of frozen tenants, and thaws those of the others.
func (en *Enforcer) applyTenantFreezes(ctx context.Context) []tenantLease {
	if en.Freezer == nil {
		return nil
	}
	enforcing := en.State.Desired().Enforcing()
	var out []tenantLease
	for _, l := range en.Table.Live() {
		done := tenantLease{tenant: l.Terms.Tenant, LeaseFreeze: api.LeaseFreeze{Lease: l.ID}}
		var err error
		switch freeze := enforcing && en.Tenants.get(l.Terms.Tenant) != nil; {
		case !freeze:
			if now, live := en.Table.Get(l.ID); live && now.Terms.Tenant != l.Terms.Tenant {
				continue // Its tenant has got another name since, and wakes this loop.
			}
			if slices.Contains(en.Freezer.Reasons(l.ID), cgroup.ForAdministrator) {
				err = en.thaw(ctx, l.ID, cgroup.ForAdministrator)
			}
			for _, r := range en.Freezer.Reasons(l.ID) {
				done.Frozen, done.Reason = true, "it is frozen for "+r.String()
			}
		case neverFrozen(&l) != "":
			done.Reason = neverFrozen(&l)
		case l.State != lease.Running:
			done.Reason = "it is " + string(l.State)
		default:
			err = en.freeze(ctx, l.ID, cgroup.ForAdministrator, cgroup.Forever)
			done.Frozen = err == nil
		}
		if err != nil {
			done.Reason = err.Error()
			en.Log.Warn("cannot freeze or thaw a lease of a tenant", "lease", l.ID, "tenant", l.Terms.Tenant, "error", err)
		}
		out = append(out, done)
	}
	return out
}

// neverFrozen is why a lease cannot be frozen while it runs; empty if it can.
func neverFrozen(l *lease.Lease) string {
	switch {
	case l.InPlace():
		return "it is a login, a service or a process in place, and is never frozen"
	case !l.Isolation.Freeze:
		return "it was started when nothing could be frozen"
	}
	return ""
}

// tenantLoop freezes and thaws leases when something changed, until ctx ends. While a tenant is frozen it repeats that: the
// thaw watchdog may have been missing.
func (en *Enforcer) tenantLoop(ctx context.Context) {
	for {
		d := time.Minute
		if en.Tenants.any() {
			d = time.Second
		}
		en.applyTenantFreezes(ctx)
		if _, ok := en.Tenants.Wake.Sleep(ctx, d); !ok {
			return
		}
	}
}
