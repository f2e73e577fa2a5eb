package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Confined is a program that systemd runs without devices, a network and files that it may change, as another user or with few
// capabilities.
type Confined struct {
	Name        string // without ".service"
	Description string
	Argv        []string // the program's absolute path first
	Env         []string // nothing of the daemon's environment is passed
	Slice       string   // a unit
	Stdin       *os.File
	UID, GID    int
	// Capabilities that it may have, a bit for each number; none when zero.
	Capabilities uint64
	Memory       uint64 // bytes
	Tasks        uint64
}

// StartConfined starts it and returns its state once it runs. A name is used once.
func (a *Adapter) StartConfined(ctx context.Context, s Confined) (st ServiceState, err error) {
	raw, err := s.Stdin.SyscallConn()
	if err != nil {
		return ServiceState{}, fmt.Errorf("cannot start service %s: %w", s.Name, err)
	}
	unit := s.Name + ".service"
	var started error
	err = raw.Control(func(fd uintptr) {
		props := append(confinedProperties(s), prop("StandardInputFileDescriptor", dbus.UnixFD(fd)))
		started = a.bus.job(ctx, "start service "+s.Name, func(ctx context.Context, c *sd.Conn, ended chan<- string) (int, error) {
			return c.StartTransientUnitContext(ctx, unit, "fail", props, ended)
		})
	})
	if err = errors.Join(err, started); err != nil {
		return ServiceState{}, err
	}
	st, err = a.ServiceState(ctx, s.Name)
	if err == nil && st.MainPID == 0 {
		err = errors.New(cmp.Or(st.End(), "its end is not known"))
	}
	if err != nil {
		return ServiceState{}, fmt.Errorf("cannot start service %s: it ended at once: %w", s.Name, err)
	}
	return st, nil
}

// confinedProperties are all older than minVersion. The program restricts itself further: its list of calls is its own.
func confinedProperties(s Confined) []sd.Property {
	return []sd.Property{
		prop("Description", s.Description),
		prop("Slice", s.Slice),
		prop("Type", "exec"),
		execStart(s.Argv),
		prop("Environment", s.Env),
		prop("CollectMode", "inactive-or-failed"),
		prop("Restart", "no"),
		prop("TimeoutStopUSec", uint64(stopTimeout.Microseconds())),
		prop("User", strconv.Itoa(s.UID)),
		prop("Group", strconv.Itoa(s.GID)),
		prop("CapabilityBoundingSet", s.Capabilities),
		prop("NoNewPrivileges", true),
		prop("PrivateNetwork", true),
		prop("PrivateDevices", true),
		prop("PrivateTmp", true),
		prop("ProtectSystem", "strict"),
		prop("ProtectHome", "yes"),
		prop("ProtectKernelTunables", true),
		prop("ProtectControlGroups", true),
		prop("RestrictNamespaces", uint64(0)),
		prop("MemoryMax", s.Memory),
		prop("MemorySwapMax", uint64(0)),
		prop("TasksMax", s.Tasks),
		prop("UMask", uint32(0o077)),
		prop("StandardOutput", "journal"),
		prop("StandardError", "journal"),
	}
}
