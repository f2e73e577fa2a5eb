package adoption

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// loginLimit is a memory limit that gpushare set on a user's logins, and the limit before it.
type loginLimit struct {
	Tenant string  `json:"tenant"`
	Limit  uint64  `json:"limit"`
	Before *uint64 `json:"before,omitempty"`
}

// loginLimits are the limits that are set. They last until the next boot, and so does their record.
type loginLimits struct {
	loaded bool
	set    map[int]loginLimit // by uid
	shown  atomic.Pointer[map[int]loginLimit]
}

const loginLimitsFile = "login-limits.json"

// limitLogins sets the limit of each login of a tenant's member, and restores the previous limit if no tenant sets one
// any more. A user's slice cannot be below the tenant's slice, so these limits do not count towards the tenant's own.
func (a *Adopter) limitLogins(ctx context.Context, want *state.Desired, logins []cgroup.Login) error {
	x := &a.perLogin
	if err := a.loadLoginLimits(); err != nil {
		return err
	}
	due := map[int]loginLimit{}
	for i := range logins {
		uid := logins[i].UID
		l, ok, sure := a.limitOf(ctx, want, &logins[i])
		if was, set := x.set[uid]; !ok && !sure && set && want.Limits(was.Tenant) {
			l, ok = was, true // A limit is kept while the user directory does not answer.
		}
		if ok {
			due[uid] = l
		}
	}
	if a.Sessions == nil || len(due) == 0 && len(x.set) == 0 {
		a.showLoginLimits(nil)
		return nil
	}
	var errs []error
	for _, uid := range slices.Sorted(maps.Keys(due)) {
		errs = append(errs, a.limitLogin(ctx, uid, due[uid]))
	}
	for _, uid := range slices.Sorted(maps.Keys(x.set)) {
		loggedIn := slices.ContainsFunc(logins, func(l cgroup.Login) bool { return l.UID == uid })
		if _, is := due[uid]; is || !loggedIn && want.Limits(x.set[uid].Tenant) {
			continue // It applies to the user's next login from its start.
		}
		errs = append(errs, a.unlimitLogin(ctx, uid))
	}
	a.showLoginLimits(logins)
	return errors.Join(errs...)
}

// limitOf returns the limit of one login: the least, if its user is in several tenants that have one.
func (a *Adopter) limitOf(ctx context.Context, want *state.Desired, l *cgroup.Login) (out loginLimit, ok, sure bool) {
	if !want.Enforcing() {
		return out, false, true
	}
	tenants, sure := a.tenantsOfLogin(ctx, want, l, func(t *api.TenantSpec) bool { return want.Limits(t.Name) })
	for _, t := range tenants {
		if m := uint64(*t.PerLogin.Memory); !ok || m < out.Limit {
			out, ok = loginLimit{Tenant: t.Name, Limit: m}, true
		}
	}
	return out, ok, sure
}

// limitLogin sets one limit. The previous limit is on disk before it is overwritten.
func (a *Adopter) limitLogin(ctx context.Context, uid int, want loginLimit) error {
	x := &a.perLogin
	is, err := a.Sessions.LoginMemory(ctx, uid)
	if err != nil {
		return err
	}
	if was, managed := x.set[uid]; managed {
		want.Before = was.Before
	} else {
		want.Before = is
	}
	if is != nil && *is == want.Limit {
		if was, managed := x.set[uid]; managed && was != want {
			x.set[uid] = want
			return a.saveLoginLimits()
		}
		return nil // It is active already; if another program set the same limit it is not restored later.
	}
	x.set[uid] = want
	if err := a.saveLoginLimits(); err != nil {
		return err
	}
	return a.setLoginMemory(ctx, uid, &want.Limit)
}

// unlimitLogin restores the previous limit.
func (a *Adopter) unlimitLogin(ctx context.Context, uid int) error {
	x := &a.perLogin
	was := x.set[uid]
	is, err := a.Sessions.LoginMemory(ctx, uid)
	if err != nil {
		return err
	}
	if is != nil && *is == was.Limit { // else another program has changed it since: keep that
		if err := a.setLoginMemory(ctx, uid, was.Before); err != nil {
			return err
		}
	}
	delete(x.set, uid)
	return a.saveLoginLimits()
}

// setLoginMemory sets a limit and reads it back.
func (a *Adopter) setLoginMemory(ctx context.Context, uid int, limit *uint64) error {
	if err := a.Sessions.SetLoginMemory(ctx, uid, limit); err != nil {
		return err
	}
	a.Counters.Steps.Add(1)
	is, err := a.Sessions.LoginMemory(ctx, uid)
	if err != nil {
		return err
	}
	if (is == nil) != (limit == nil) || is != nil && *is != *limit {
		return fmt.Errorf("cannot limit the memory of the logins of uid %d: another value was read back", uid)
	}
	shown := "" // none
	if limit != nil {
		shown = api.Bytes(*limit).String()
	}
	a.Log.Info("memory limit of logins changed", "uid", uid, "limit", shown)
	return nil
}

func (a *Adopter) loadLoginLimits() error {
	x := &a.perLogin
	if x.loaded {
		return nil
	}
	x.set = map[int]loginLimit{}
	b, damage, err := a.RunDir.Read(loginLimitsFile)
	if errors.Is(err, fs.ErrNotExist) {
		x.loaded = true
		return nil
	}
	if err = cmp.Or(err, damage.Err()); err == nil {
		err = json.Unmarshal(b, &x.set)
	}
	if err != nil {
		return fmt.Errorf("cannot read the login limits: %w", err)
	}
	if damage != nil {
		a.Log.Warn("the login limits of the previous run are not the last ones", "reason", damage.Reason)
	}
	x.loaded = true
	return nil
}

func (a *Adopter) saveLoginLimits() error {
	b, err := json.Marshal(a.perLogin.set)
	if err == nil {
		err = a.RunDir.Write(loginLimitsFile, b)
	}
	if err != nil {
		return fmt.Errorf("cannot record the login limits: %w", err)
	}
	return nil
}

// showLoginLimits stores the limits that the kernel has, for status.
func (a *Adopter) showLoginLimits(logins []cgroup.Login) {
	seen := map[int]loginLimit{}
	h, err := a.Hierarchy()
	for _, l := range logins {
		want, managed := a.perLogin.set[l.UID]
		if err != nil || !managed {
			continue
		}
		b, err := boundedread.Trusted(filepath.Join(h.Dir(l.Cgroup), "memory.max"), boundedread.Value)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			want.Limit = n
			seen[l.UID] = want
		}
	}
	a.perLogin.shown.Store(&seen)
}

// LimitedUsers counts the users whose logins have a limit set by gpushare.
func (a *Adopter) LimitedUsers() (int, error) {
	a.Adoption.mu.Lock()
	defer a.Adoption.mu.Unlock()
	err := a.loadLoginLimits()
	return len(a.perLogin.set), err
}

// LoginsLimited counts the logins of a tenant's members for which at most this limit of memory was read back, in bytes.
func (a *Adopter) LoginsLimited(tenant string, limit uint64) int {
	shown := a.perLogin.shown.Load()
	if shown == nil {
		return 0
	}
	count := 0
	for _, l := range *shown {
		// The kernel counts whole pages.
		if l.Tenant == tenant && l.Limit <= limit && limit-l.Limit < 1<<16 {
			count++
		}
	}
	return count
}
