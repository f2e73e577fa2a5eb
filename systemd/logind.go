package systemd

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/godbus/dbus/v5"

	"github.com/gpushare/gpushare/cgroup"
)

const (
	loginName  = "org.freedesktop.login1"
	loginIface = loginName + ".Manager"
	loginPath  = dbus.ObjectPath("/org/freedesktop/login1")
)

// loginMatches match the signals about logins. A signal only causes another reading of the logins, so a forged or lost one
// does no other harm.
func loginMatches() [][]dbus.MatchOption {
	var rules [][]dbus.MatchOption
	for _, member := range []string{"UserNew", "UserRemoved", "SessionNew", "SessionRemoved"} {
		rules = append(rules, []dbus.MatchOption{
			dbus.WithMatchSender(loginName),
			dbus.WithMatchObjectPath(loginPath),
			dbus.WithMatchInterface(loginIface),
			dbus.WithMatchMember(member),
		})
	}
	// While logind restarts, signals are lost.
	return append(rules, []dbus.MatchOption{
		dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, loginName),
	})
}

// unitMatches match the signals about units that start and end. Every start is a job, also one that systemd begins by itself,
// and 252 and 257 both report the end of a job after its effect. UnitNew reports that a unit was loaded, not started.
func unitMatches() [][]dbus.MatchOption {
	return [][]dbus.MatchOption{
		{
			dbus.WithMatchSender(busName),
			dbus.WithMatchObjectPath(managerPath),
			dbus.WithMatchInterface(managerIface),
			dbus.WithMatchMember("JobRemoved"),
		},
	}
}

// ErrNoLogind: systemd-logind does not run. It wraps cgroup.ErrNoLogins.
var ErrNoLogind = fmt.Errorf("systemd-logind does not run: %w", cgroup.ErrNoLogins)

// Logins lists the users who are logged in, by uid. It includes users who linger, and users whose last login has ended but
// whose service manager still runs: they have a cgroup.
func (a *Adapter) Logins(ctx context.Context) ([]cgroup.Login, error) {
	var users []struct {
		UID  uint32
		Name string
		Path dbus.ObjectPath
	}
	err := a.bus.do(ctx, func(ctx context.Context, l *link) error {
		// logind is not started for this call: where it does not run, it has no logins.
		return l.raw.Object(loginName, loginPath).CallWithContext(ctx, loginIface+".ListUsers", dbus.FlagNoAutoStart).Store(&users)
	})
	switch errorName(err) {
	case "":
	case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner":
		return nil, fmt.Errorf("cannot list logins: %w", ErrNoLogind)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list logins: %w", err)
	}
	var out []cgroup.Login
	for _, u := range users {
		l := cgroup.Login{UID: int(u.UID), Name: u.Name, Unit: UserSlice(int(u.UID))}
		l.Cgroup, err = a.controlGroup(ctx, l.Unit, "Slice")
		if err != nil {
			return nil, err
		}
		if l.Cgroup != "" { // else the login begins or has just ended
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(x, y cgroup.Login) int { return cmp.Compare(x.UID, y.UID) })
	return out, nil
}

// UserSlice is the unit of all logins of a user.
func UserSlice(uid int) string { return "user-" + strconv.Itoa(uid) + ".slice" }

// UnitCgroup returns the cgroup of a unit's processes; cgroup.ErrNotFound when the unit does not run.
func (a *Adapter) UnitCgroup(ctx context.Context, unit string) (string, error) {
	kind, err := unitKind(unit)
	if err != nil {
		return "", err
	}
	return a.unitCgroup(ctx, unit, kind)
}

// unitKind is the interface of a unit that has a cgroup.
func unitKind(unit string) (string, error) {
	switch path.Ext(unit) {
	case ".service":
		return "Service", nil
	case ".scope":
		return "Scope", nil
	case ".slice":
		return "Slice", nil
	}
	return "", fmt.Errorf("cannot find the processes of %s: only services, scopes and slices have a cgroup", unit)
}

// LoginMemory reads the memory limit of all logins of a user together; nil when there is none. Reading and setting also work
// while the user is not logged in.
func (a *Adapter) LoginMemory(ctx context.Context, uid int) (*uint64, error) {
	props, err := a.typed(ctx, UserSlice(uid), "Slice")
	if err != nil {
		return nil, err
	}
	return number(props, "MemoryMax"), nil
}

// SetLoginMemory sets that limit until the next boot; nil removes it. It also applies to later logins of the user, from
// their start.
func (a *Adapter) SetLoginMemory(ctx context.Context, uid int, limit *uint64) error {
	unit := UserSlice(uid)
	err := a.bus.do(ctx, func(ctx context.Context, l *link) error {
		return l.units.SetUnitPropertiesContext(ctx, unit, bool(runtime), prop("MemoryMax", orInfinity(limit)))
	})
	if err != nil {
		return fmt.Errorf("cannot set the memory limit of %s: %w", unit, err)
	}
	return nil
}
