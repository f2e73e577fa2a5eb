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

// loginMatches are the signals that tell of logins. All that follows from one of them is that somebody looks again, so one
// that was forged or lost does no harm beyond that.
func loginMatches() [][]dbus.MatchOption {
	var rules [][]dbus.MatchOption
	for _, member := range []string{"UserNew", "UserRemoved", "SessionNew", "SessionRemoved"} {
		rules = append(rules, []dbus.MatchOption{
			dbus.WithMatchSender(loginName), dbus.WithMatchObjectPath(loginPath), dbus.WithMatchInterface(loginIface), dbus.WithMatchMember(member),
		})
	}
	// Its restart may hide what happened meanwhile.
	return append(rules, []dbus.MatchOption{
		dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, loginName),
	})
}

// unitMatches are the signals that tell of units that start and end. Every start is a job, also one that systemd decides by
// itself, and 252 and 257 both tell of a job's end after what it did. UnitNew tells of loading and not of starting.
func unitMatches() [][]dbus.MatchOption {
	return [][]dbus.MatchOption{{
		dbus.WithMatchSender(busName), dbus.WithMatchObjectPath(managerPath), dbus.WithMatchInterface(managerIface), dbus.WithMatchMember("JobRemoved"),
	}}
}

// ErrNoLogind means that systemd-logind does not run: it is a cgroup.ErrNoLogins.
var ErrNoLogind = fmt.Errorf("systemd-logind does not run: %w", cgroup.ErrNoLogins)

// Logins lists the users who are logged in, by uid. A user who lingers, or whose last login has just ended while their
// own service manager still runs, is among them: their cgroup is there.
func (a *Adapter) Logins(ctx context.Context) ([]cgroup.Login, error) {
	var users []struct {
		UID  uint32
		Name string
		Path dbus.ObjectPath
	}
	err := a.bus.do(ctx, func(ctx context.Context, l *link) error {
		// Not started for our sake: where it does not run nobody logged in through it.
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
		if l.Cgroup != "" { // else the user is coming or has just gone
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(x, y cgroup.Login) int { return cmp.Compare(x.UID, y.UID) })
	return out, nil
}

// UserSlice is the unit that holds all logins of a user.
func UserSlice(uid int) string { return "user-" + strconv.Itoa(uid) + ".slice" }

// UnitCgroup tells where a unit's processes are. cgroup.ErrNotFound when it does not run.
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
	return "", fmt.Errorf("cannot look for the processes of %s: only services, scopes and slices have their own", unit)
}

// LoginMemory reads the memory limit of all logins of a user together; nil when there is none. Setting and reading work
// whether the user is logged in or not.
func (a *Adapter) LoginMemory(ctx context.Context, uid int) (*uint64, error) {
	props, err := a.typed(ctx, UserSlice(uid), "Slice")
	if err != nil {
		return nil, err
	}
	return number(props, "MemoryMax"), nil
}

// SetLoginMemory sets that limit, until the next boot; nil takes it away. It holds from the birth of the user's next
// login too.
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
