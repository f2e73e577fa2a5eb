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
	"github.com/gpushare/gpushare/internal/procfs"
)

// programUnit is the service of a lease that nobody waits for.
func programUnit(prefix, id string) string { return escape(prefix) + "-lease-" + id + ".service" }

// programOf undoes programUnit.
func programOf(prefix, unit string) (id string, ok bool) {
	name, ok := strings.CutSuffix(unit, ".service")
	if !ok {
		return "", false
	}
	id, ok = strings.CutPrefix(name, escape(prefix)+"-lease-")
	return id, ok && id != ""
}

// StartProgram makes a delegated service that is a lease's, and moves its main process into the inner cgroup. argv is a
// program of ours that does nothing until it is told what to become on its standard input: the walls hold from its birth,
// and the inner cgroup before it becomes anything.
//
// The service never has a User=: systemd would delegate its cgroup to that user, who could then leave the inner one, and
// it would add the groups of the user database to those that the asker has.
func (a *Adapter) StartProgram(ctx context.Context, s cgroup.Scope, argv []string, stdin *os.File) (cgroup.ScopeState, cgroup.Process, error) {
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
		// An id that was given before: what is left of that one has ended, or it is not ours to replace.
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

// programProperties is what the service is born with. It stays when its process has ended, so that how it ended can be
// read: Result lets go of it.
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

// program reads where a lease's service is. ErrNotFound when there is none, or nothing of it runs.
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

// Program is the main process of a lease's service, the zero one when that has ended. ErrNotFound when there is no such
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

// resultInterval is the time between two looks at a service that is about to be called ended.
const resultInterval = 20 * time.Millisecond

// Result tells how the main process of a lease's service ended, and lets go of the service. It waits until the service
// manager has taken note of the end. ErrNotFound when there is no such service.
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
			// Its cgroup is empty and it lives: it left. The service manager still knows it, and ends it with its service.
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopTimeout)
			defer cancel()
			return ProgramResult{}, errors.Join(fmt.Errorf("cannot tell how %s ended: it is %s: %w", unit, st.Active, ctx.Err()), a.stop(stop, unit))
		case <-time.After(resultInterval):
		}
	}
}

// cldExited is CLD_EXITED of waitid(2), in ExecMainCode.
const cldExited = 1

// collect lets go of a service that has ended.
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
