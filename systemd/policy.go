package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
)

// usualPolicyDir is where both dbus-daemon and dbus-broker read an administrator's policy. Neither reads one below /run.
const usualPolicyDir = "/etc/dbus-1/system.d"

const policyName = "gpushare-migration.conf"

// migrationPolicy denies the calls that move a process out of a lease. A tenant's service manager cannot move a process out
// of a cgroup that is not below its own: it calls the system's service manager in the tenant's name. A deny rule also
// matches calls without an interface. Root's rules come after the default ones, so root may make these calls.
const migrationPolicy = `<?xml version="1.0"?>
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<!-- Written by gpushared because node.isolation.migration is deny in the spec; 'gpushare unmanage' removes it. -->
<busconfig>
  <policy context="default">
    <deny send_destination="org.freedesktop.systemd1" send_interface="org.freedesktop.systemd1.Manager" send_member="AttachProcessesToUnit"/>
    <deny send_destination="org.freedesktop.systemd1" send_interface="org.freedesktop.systemd1.Service" send_member="AttachProcesses"/>
    <deny send_destination="org.freedesktop.systemd1" send_interface="org.freedesktop.systemd1.Scope" send_member="AttachProcesses"/>
  </policy>
</busconfig>
`

// MigrationDenied reports whether the policy that denies moving processes between units is installed.
func (a *Adapter) MigrationDenied() (bool, error) {
	b, err := boundedread.Trusted(a.policyFile(), boundedread.Value)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read the bus policy: %w", err)
	}
	return bytes.Equal(b, []byte(migrationPolicy)), nil
}

// DenyMigration installs the policy, and makes the bus read it.
func (a *Adapter) DenyMigration(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(a.policyFile()), 0o755); err != nil {
		return fmt.Errorf("cannot create the directory of bus policies: %w", err)
	}
	// The bus reads every file that ends in .conf, and refuses all of them when one is incomplete.
	// It runs as another user, and the umask may forbid that to read the file.
	err := durable.Replace(
		a.policyFile(), []byte(migrationPolicy),
		durable.Options{Mode: 0o644, Any: true, Temp: filepath.Base(a.policyFile()) + ".new", Volatile: true},
	)
	if err != nil {
		return fmt.Errorf("cannot write the bus policy: %w", err)
	}
	return a.reloadBus(ctx)
}

// AllowMigration removes the policy, and makes the bus read its configuration. A missing policy is no error.
func (a *Adapter) AllowMigration(ctx context.Context) error {
	if err := os.Remove(a.policyFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the bus policy: %w", err)
	}
	return a.reloadBus(ctx)
}

// reloadBus makes the bus read its configuration now. Without it the bus notices a change of the directory only later.
func (a *Adapter) reloadBus(ctx context.Context) error {
	return a.bus.do(ctx, func(ctx context.Context, l *link) error {
		if err := l.raw.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.ReloadConfig", 0).Err; err != nil {
			return fmt.Errorf("cannot make the bus read its policy: %w", err)
		}
		return nil
	})
}

func (a *Adapter) policyFile() string { return filepath.Join(a.policyDir, policyName) }
