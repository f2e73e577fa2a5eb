package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// programUnit is the service of a detached lease.
func programUnit(prefix, id string) string { return escape(prefix) + "-lease-" + id + ".service" }

// programOf is the inverse of programUnit.
func programOf(prefix, unit string) (id string, ok bool) {
	name, ok := strings.CutSuffix(unit, ".service")
	if !ok {
		return "", false
	}
	id, ok = strings.CutPrefix(name, escape(prefix)+"-lease-")
	return id, ok && id != ""
}

// StartProgram starts a delegated service for a lease, and moves its main process into the inner cgroup. argv is a program of
// gpushare that waits until it gets the tenant's program on its standard input: the device rules apply from its start, and
// it is in the inner cgroup before it runs anything of the tenant.
//
// The service never has a User=: systemd would delegate its cgroup to that user, who could then leave the inner one, and
// it would add the groups of the user database to those of the caller.
func (a *Adapter) StartProgram(
	ctx context.Context, s cgroup.Scope, argv []string, stdin *os.File,
) (cgroup.ScopeState, cgroup.Process, error) {
	fail := func(err error) (cgroup.ScopeState, cgroup.Process, error) {
		return cgroup.ScopeState{}, cgroup.Process{}, fmt.Errorf("cannot start the service of lease %s: %w", s.ID, err)
	}
	if err := checkScope(s); err != nil {
		return fail(err)
	}
	unit := programUnit(a.prefix, s.ID)
	raw, err := stdin.SyscallConn()
	if err != nil {
		return fail(err)
	}
	start := func() error {
		var started error
		err := raw.Control(func(fd uintptr) {
			props := append(a.programProperties(s, argv), prop("StandardInputFileDescriptor", dbus.UnixFD(fd)))
			started = a.bus.job(ctx, "start service "+unit, func(ctx context.Context, c *sd.Conn, ended chan<- string) (int, error) {
				return c.StartTransientUnitContext(ctx, unit, "fail", props, ended)
			})
		})
		return errors.Join(err, started)
	}
	err = start()
	if is(err, "UnitExists") {
		// The id was used before. The service of that lease has ended, or it must not be replaced.
		if err = a.collect(ctx, unit); err == nil {
			err = start()
		}
	}
	if err != nil {
		return fail(err)
	}
	state, p, err := a.program(ctx, s.ID)
	if err == nil && p.PID == 0 {
		err = errors.New("it ended at once: see its journal")
	}
	if err == nil {
		err = a.moveInside(ctx, path.Dir(state.Path), p)
	}
	if err != nil {
		return fail(errors.Join(err, a.stop(ctx, unit)))
	}
	a.register(s.ID, path.Dir(state.Path))
	return state, p, nil
}

// programProperties are the properties that the service starts with. The service remains after its process has ended, so
// that the result can be read: Result removes it.
func (a *Adapter) programProperties(s cgroup.Scope, argv []string) []sd.Property {
	props := []sd.Property{
		prop("Type", "exec"),
		execStart(argv),
		prop("RemainAfterExit", true),
		prop("IgnoreSIGPIPE", false), // as in a shell
		prop("OOMPolicy", "kill"),    // services have had it since 243
		prop("StandardOutput", "journal"),
		prop("StandardError", "journal"),
		prop("SyslogIdentifier", s.ID),
	}
	for _, p := range a.scopeProperties(s) {
		switch p.Name {
		case "OOMPolicy":
			continue
		case "CollectMode":
			p = prop("CollectMode", "inactive")
		}
		props = append(props, p)
	}
	return props
}

// program reads the state of a lease's service. It returns ErrNotFound when there is none, or none of its processes run.
func (a *Adapter) program(ctx context.Context, id string) (cgroup.ScopeState, cgroup.Process, error) {
	unit := programUnit(a.prefix, id)
	st, err := a.serviceState(ctx, unit)
	if err != nil {
		return cgroup.ScopeState{}, cgroup.Process{}, err
	}
	if st.Cgroup == "" {
		return cgroup.ScopeState{}, cgroup.Process{}, fmt.Errorf("unit %s: %w", unit, cgroup.ErrNotFound)
	}
	var p cgroup.Process
	if st.MainPID > 0 {
		if start, err := procfs.Start(st.MainPID); err == nil {
			p = cgroup.Process{PID: st.MainPID, Start: start}
		}
	}
	return cgroup.ScopeState{ID: id, Path: path.Join(st.Cgroup, inner), Unit: unit, MemoryNodes: a.h.MemoryNodes(st.Cgroup)}, p, nil
}

// Program returns the main process of a lease's service, the zero one when it has ended; ErrNotFound when there is no such
// service.
func (a *Adapter) Program(ctx context.Context, id string) (cgroup.Process, error) {
	_, p, err := a.program(ctx, id)
	return p, err
}

// ProgramResult is how the main process of a lease's service ended.
type ProgramResult struct {
	Exited bool // by itself; else by a signal
	Code   int
	At     time.Time
}

// resultInterval is the time between two readings of a service that is about to end.
const resultInterval = 20 * time.Millisecond

// Result returns how the main process of a lease's service ended, and removes the service. It waits until the service
// manager has recorded the end. ErrNotFound: there is no such service.
func (a *Adapter) Result(ctx context.Context, id string) (ProgramResult, error) {
	unit := programUnit(a.prefix, id)
	for {
		st, err := a.serviceState(ctx, unit)
		if err != nil {
			return ProgramResult{}, err
		}
		if st.MainPID == 0 && st.Active != "activating" && st.Active != "deactivating" && st.Active != "reloading" {
			r := ProgramResult{Exited: st.exitCode == cldExited, Code: st.exitStatus, At: time.UnixMicro(int64(st.exitTime))}
			if st.exitCode == 0 {
				return ProgramResult{}, errors.Join(fmt.Errorf("unit %s never ran: %w", unit, cgroup.ErrNotFound), a.collect(ctx, unit))
			}
			return r, a.collect(ctx, unit)
		}
		select {
		case <-ctx.Done():
			// Its cgroup is empty and it runs: it was moved out. The service manager still tracks it, and stops it with its service.
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopTimeout)
			defer cancel()
			return ProgramResult{}, errors.Join(
				fmt.Errorf("cannot read how %s ended: it is %s: %w", unit, st.Active, ctx.Err()), a.stop(stop, unit),
			)
		case <-time.After(resultInterval):
		}
	}
}

// cldExited is CLD_EXITED of waitid(2), in ExecMainCode.
const cldExited = 1

// collect removes a service that has ended.
func (a *Adapter) collect(ctx context.Context, unit string) error {
	st, err := a.serviceState(ctx, unit)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.MainPID != 0 {
		return fmt.Errorf("unit %s still runs: %w", unit, ErrExists)
	}
	if err := a.stop(ctx, unit); err != nil {
		return err
	}
	return a.reset(ctx, unit)
}
