package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/systemd"
)

// loginLimit is a memory limit that we set on a user's logins, and what was there before.
type loginLimit struct {
	Tenant string  `json:"tenant"`
	Limit  uint64  `json:"limit"`
	Before *uint64 `json:"before,omitempty"`
}

// loginLimits are those that are set. They last until the next boot, and so does their record.
type loginLimits struct {
	loaded bool
	set    map[int]loginLimit // by uid
	shown  atomic.Pointer[map[int]loginLimit]
}

const loginLimitsFile = "login-limits.json"

// limitLogins gives the logins of tenants' members the limit that each has for itself, and takes back what nobody asks
// for. A user's slice cannot stand below the tenant's, so these limits do not add up with the tenant's own.
func (d *Adopter) limitLogins(ctx context.Context, want *desired, logins []systemd.Login) error {
	x := &d.perLogin
	if err := d.loadLoginLimits(); err != nil {
		return err
	}
	due := map[int]loginLimit{}
	for i := range logins {
		uid := logins[i].UID
		l, ok, sure := d.limitOf(ctx, want, &logins[i])
		if was, set := x.set[uid]; !ok && !sure && set && want.limits(was.Tenant) {
			l, ok = was, true // Nobody loses a limit because a directory does not answer.
		}
		if ok {
			due[uid] = l
		}
	}
	if d.books == nil || len(due) == 0 && len(x.set) == 0 {
		d.showLoginLimits(nil)
		return nil
	}
	var errs []error
	for _, uid := range slices.Sorted(maps.Keys(due)) {
		errs = append(errs, d.limitLogin(ctx, uid, due[uid]))
	}
	for _, uid := range slices.Sorted(maps.Keys(x.set)) {
		here := slices.ContainsFunc(logins, func(l systemd.Login) bool { return l.UID == uid })
		if _, is := due[uid]; is || !here && want.limits(x.set[uid].Tenant) {
			continue // It holds for the next login from its birth.
		}
		errs = append(errs, d.unlimitLogin(ctx, uid))
	}
	d.showLoginLimits(logins)
	return errors.Join(errs...)
}

// limits tells whether a tenant's logins have a limit.
func (d *desired) limits(tenant string) bool {
	t, ok := d.tenant(tenant)
	return ok && d.enforcing() && t.PerLogin != nil && t.PerLogin.Memory != nil
}

// limitOf is the limit of one login: the least, if its user is in several tenants that have one.
func (d *Adopter) limitOf(ctx context.Context, want *desired, l *systemd.Login) (out loginLimit, ok, sure bool) {
	if !want.enforcing() {
		return out, false, true
	}
	tenants, sure := d.tenantsOfLogin(ctx, want, l, func(t *api.TenantSpec) bool { return want.limits(t.Name) })
	for _, t := range tenants {
		if m := uint64(*t.PerLogin.Memory); !ok || m < out.Limit {
			out, ok = loginLimit{Tenant: t.Name, Limit: m}, true
		}
	}
	return out, ok, sure
}

// limitLogin sets one limit. What was there before is on disk before it is overwritten.
func (d *Adopter) limitLogin(ctx context.Context, uid int, want loginLimit) error {
	x := &d.perLogin
	is, err := d.books.LoginMemory(ctx, uid)
	if err != nil {
		return err
	}
	if was, ours := x.set[uid]; ours {
		want.Before = was.Before
	} else {
		want.Before = is
	}
	if is != nil && *is == want.Limit {
		if was, ours := x.set[uid]; ours && was != want {
			x.set[uid] = want
			return d.saveLoginLimits()
		}
		return nil // Ours is in force, or somebody else set the same: then it is not ours to take back.
	}
	x.set[uid] = want
	if err := d.saveLoginLimits(); err != nil {
		return err
	}
	return d.setLoginMemory(ctx, uid, &want.Limit)
}

// unlimitLogin takes one limit back: what was there before is there again.
func (d *Adopter) unlimitLogin(ctx context.Context, uid int) error {
	x := &d.perLogin
	was := x.set[uid]
	is, err := d.books.LoginMemory(ctx, uid)
	if err != nil {
		return err
	}
	if is != nil && *is == was.Limit { // else somebody changed it since, and it is theirs
		if err := d.setLoginMemory(ctx, uid, was.Before); err != nil {
			return err
		}
	}
	delete(x.set, uid)
	return d.saveLoginLimits()
}

// setLoginMemory sets a limit and reads it back.
func (d *Adopter) setLoginMemory(ctx context.Context, uid int, limit *uint64) error {
	if err := d.books.SetLoginMemory(ctx, uid, limit); err != nil {
		return err
	}
	d.Counters.steps.Add(1)
	is, err := d.books.LoginMemory(ctx, uid)
	if err != nil {
		return err
	}
	if (is == nil) != (limit == nil) || is != nil && *is != *limit {
		return fmt.Errorf("cannot limit the memory of the logins of uid %d: it is not as it was set", uid)
	}
	shown := "" // none
	if limit != nil {
		shown = api.Bytes(*limit).String()
	}
	d.Log.Info("a login's memory was limited", "uid", uid, "limit", shown)
	return nil
}

func (d *Adopter) loadLoginLimits() error {
	x := &d.perLogin
	if x.loaded {
		return nil
	}
	x.set = map[int]loginLimit{}
	b, err := d.runDir.Read(loginLimitsFile)
	if errors.Is(err, fs.ErrNotExist) {
		x.loaded = true
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, &x.set)
	}
	if err != nil {
		return fmt.Errorf("cannot read which logins were limited: %w", err)
	}
	x.loaded = true
	return nil
}

func (d *Adopter) saveLoginLimits() error {
	b, err := json.Marshal(d.perLogin.set)
	if err == nil {
		err = d.runDir.Write(loginLimitsFile, b)
	}
	if err != nil {
		return fmt.Errorf("cannot record which logins are limited: %w", err)
	}
	return nil
}

// showLoginLimits keeps, for status, the limits that the kernel has.
func (d *Adopter) showLoginLimits(logins []systemd.Login) {
	seen := map[int]loginLimit{}
	h, err := cgroup.FindHierarchy()
	for _, l := range logins {
		want, ours := d.perLogin.set[l.UID]
		if err != nil || !ours {
			continue
		}
		b, err := os.ReadFile(filepath.Join(h.Dir(l.Cgroup), "memory.max"))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			want.Limit = n
			seen[l.UID] = want
		}
	}
	d.perLogin.shown.Store(&seen)
}

// limited counts the users whose logins have a limit of ours.
func (d *Adopter) limited() (int, error) {
	d.adoption.mu.Lock()
	defer d.adoption.mu.Unlock()
	err := d.loadLoginLimits()
	return len(d.perLogin.set), err
}

// loginsHeld counts the logins of a tenant's members that were read back with at most this limit of memory, in bytes.
func (d *Adopter) loginsHeld(tenant string, limit uint64) int {
	shown := d.perLogin.shown.Load()
	if shown == nil {
		return 0
	}
	held := 0
	for _, l := range *shown {
		// The kernel counts whole pages.
		if l.Tenant == tenant && l.Limit <= limit && limit-l.Limit < 1<<16 {
			held++
		}
	}
	return held
}
