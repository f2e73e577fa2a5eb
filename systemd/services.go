package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
)

// ErrExists: a service of this name runs already.
var ErrExists = errors.New("it exists already")

// Service is a program that systemd runs. It is no child of the daemon, so that it outlives it, and it does not have the
// daemon's sandbox.
type Service struct {
	Name             string // without ".service": "gpushare-mps-GPU-5f0…"
	Description      string
	Argv             []string          // the program's absolute path first
	Env              map[string]string // nothing of the daemon's environment is passed
	Slice            cgroup.SliceName  // the root slice of gpushare when empty
	WorkingDirectory string
	User             string        // root when empty
	Type             string        // "exec" when empty: started once the program runs; or "notify", "forking", "simple", "oneshot"
	Restart          string        // "no" when empty; or "on-failure", "always"
	RestartDelay     time.Duration // systemd's 100 ms when zero
	StartTimeout     time.Duration // of the start, which for "oneshot" is all it runs; systemd's default when zero
	StopTimeout      time.Duration // from SIGTERM to SIGKILL; 10 s when zero
	UMask            *uint32       // systemd's 022 when nil
	OpenFiles        uint64        // the limit of open files; systemd's default when zero
	KeepResult       bool          // after a failure it stays until StopService or the next start, so that its result can be read
	Closed           bool          // only Devices and the standard pseudo devices may be opened
	Devices          []cgroup.DeviceRule
}

// ServiceState is what systemd reports of a service.
type ServiceState struct {
	Active  string // "active", "activating", "deactivating", "inactive", "failed"
	Sub     string // "running", "auto-restart", "dead", …
	MainPID int    // 0 when none runs
	Result  string // "success", "exit-code", "signal", "timeout", …
	Cgroup  string // where its processes are, empty when it does not run

	exitCode   int    // of the main process: CLD_EXITED, CLD_KILLED, CLD_DUMPED of waitid(2); 0 while there is none
	exitStatus int    // its exit code or the signal
	exitTime   uint64 // microseconds since 1970
}

// Running reports whether the service's main process runs.
func (s ServiceState) Running() bool { return s.Active == "active" && s.MainPID > 0 }

// End describes how the main process ended: "exited with 1", "killed by signal 9"; systemd's result if it does not say. Empty while
// it runs.
func (s ServiceState) End() string {
	switch {
	case s.Running():
		return ""
	case s.exitCode == cldExited:
		return fmt.Sprintf("exited with %d", s.exitStatus)
	case s.exitCode == 0 && s.Result == "success":
		return "" // It never ran.
	case s.exitCode == 0:
		return s.Result
	}
	return fmt.Sprintf("killed by signal %d", s.exitStatus)
}

// StartService starts the service and returns when systemd reports it as started. ErrExists: a service of this name exists
// and has not ended.
func (a *Adapter) StartService(ctx context.Context, s Service) error {
	if s.Name == "" || len(s.Argv) == 0 || len(s.Argv[0]) == 0 || s.Argv[0][0] != '/' {
		return fmt.Errorf("cannot start service %q: it needs a name and the absolute path of a program", s.Name)
	}
	unit := s.Name + ".service"
	props := a.serviceProperties(s)
	start := func() error {
		return a.bus.job(ctx, "start service "+s.Name, func(ctx context.Context, c *sd.Conn, ended chan<- string) (int, error) {
			return c.StartTransientUnitContext(ctx, unit, "fail", props, ended)
		})
	}
	err := start()
	if !is(err, "UnitExists") {
		return err
	}
	st, err := a.ServiceState(ctx, s.Name)
	if err != nil {
		return err
	}
	if st.Active != "failed" && st.Active != "inactive" {
		return fmt.Errorf("cannot start service %s: it is %s: %w", s.Name, st.Active, ErrExists)
	}
	if err := a.reset(ctx, unit); err != nil {
		return err
	}
	return start()
}

func (a *Adapter) serviceProperties(s Service) []sd.Property {
	env := make([]string, 0, len(s.Env))
	for k, v := range s.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	timeout := s.StopTimeout
	if timeout == 0 {
		timeout = stopTimeout
	}
	props := []sd.Property{
		prop("Slice", sliceUnit(a.prefix, s.Slice)),
		prop("Type", orDefault(s.Type, "exec")),
		execStart(s.Argv),
		prop("Environment", env),
		prop("Restart", orDefault(s.Restart, "no")),
		prop("TimeoutStopUSec", uint64(timeout.Microseconds())),
		prop("CollectMode", collectMode(s.KeepResult)),
	}
	if s.StartTimeout > 0 {
		props = append(props, prop("TimeoutStartUSec", uint64(s.StartTimeout.Microseconds())))
	}
	if s.OpenFiles > 0 {
		props = append(props, prop("LimitNOFILE", s.OpenFiles), prop("LimitNOFILESoft", s.OpenFiles))
	}
	if s.Description != "" {
		props = append(props, prop("Description", s.Description))
	}
	if s.WorkingDirectory != "" {
		props = append(props, prop("WorkingDirectory", s.WorkingDirectory))
	}
	if s.User != "" {
		props = append(props, prop("User", s.User))
	}
	if s.RestartDelay > 0 {
		props = append(props, prop("RestartUSec", uint64(s.RestartDelay.Microseconds())))
	}
	if s.UMask != nil {
		props = append(props, prop("UMask", *s.UMask))
	}
	if s.Closed {
		props = append(props, prop("DevicePolicy", "closed"))
		if allow := devicesFor(s.Devices); len(allow) > 0 {
			props = append(props, prop("DeviceAllow", allow))
		}
	}
	return props
}

// StopService stops the service and returns when it has ended. After the timeout its processes are killed. A service that
// does not exist is no error.
func (a *Adapter) StopService(ctx context.Context, name string, timeout time.Duration) error {
	unit := name + ".service"
	graceful, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := a.stop(graceful, unit)
	if err == nil {
		return a.reset(ctx, unit) // Of a failure that was kept.
	}
	if graceful.Err() == nil || ctx.Err() != nil {
		return err
	}
	err = a.bus.do(ctx, func(ctx context.Context, l *link) error {
		return l.units.KillUnitWithTarget(ctx, unit, sd.All, int32(unix.SIGKILL))
	})
	if err != nil && !is(err, "NoSuchUnit") && !is(err, "NoSuchProcess") {
		return fmt.Errorf("cannot kill service %s: %w", name, err)
	}
	return errors.Join(a.stop(ctx, unit), a.reset(ctx, unit))
}

func collectMode(keepResult bool) string {
	if keepResult {
		return "inactive"
	}
	return "inactive-or-failed"
}

// ServiceState reads the service's state; cgroup.ErrNotFound when systemd does not know it.
func (a *Adapter) ServiceState(ctx context.Context, name string) (ServiceState, error) {
	return a.serviceState(ctx, name+".service")
}

func (a *Adapter) serviceState(ctx context.Context, unit string) (ServiceState, error) {
	var st ServiceState
	err := a.bus.do(ctx, func(ctx context.Context, l *link) error {
		all, err := l.units.GetAllPropertiesContext(ctx, unit)
		if is(err, "NoSuchUnit") {
			return fmt.Errorf("unit %s: %w", unit, cgroup.ErrNotFound)
		}
		if err != nil {
			return fmt.Errorf("cannot read unit %s: %w", unit, err)
		}
		if load, _ := all["LoadState"].(string); load == "not-found" {
			return fmt.Errorf("unit %s: %w", unit, cgroup.ErrNotFound)
		}
		st = ServiceState{}
		st.Active, _ = all["ActiveState"].(string)
		st.Sub, _ = all["SubState"].(string)
		st.Result, _ = all["Result"].(string)
		st.Cgroup, _ = all["ControlGroup"].(string)
		if pid, ok := all["MainPID"].(uint32); ok {
			st.MainPID = int(pid)
		}
		if n, ok := all["ExecMainCode"].(int32); ok {
			st.exitCode = int(n)
		}
		if n, ok := all["ExecMainStatus"].(int32); ok {
			st.exitStatus = int(n)
		}
		st.exitTime, _ = all["ExecMainExitTimestamp"].(uint64)
		return nil
	})
	return st, err
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}
