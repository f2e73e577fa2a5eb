package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/adoption"
	"github.com/gpushare/gpushare/daemon/change"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/leases"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/systemd"
)

// holder is what holds processes on this host, and what starts those that are not ours to parent.
type holder struct {
	port     cgroup.Port
	follow   *cgroup.Processes
	visitors *cgroup.Visitors
	guard    *cgroup.Guard   // nil where nothing can be frozen
	books    adoption.Books  // nil where nobody can tell
	services change.Services // nil where no units can be stopped
	units    mps.Units
	logins   *devicepolicy.LoginGuard
	launcher worker.Launcher
	programs leases.Programs
	close    func()
}

// heard is told of what may have changed on the host, and tells who somebody is.
type heard struct {
	reloaded func()            // limits and device rules: the service manager read its configuration again
	logins   func()            // who is logged in
	unit     func(name string) // whether a unit runs; any when empty
	userName func(uid int) string
}

// holdProcesses takes the strongest adapter that fits: systemd, a subtree of our own on cgroup v2, or the process tree.
func holdProcesses(ctx context.Context, s Settings, log *slog.Logger, tell heard) (*holder, error) {
	opt := cgroup.DetectOptions{}
	if s.Systemd == "off" {
		opt.Root = "/nonexistent" // Where no systemd is found.
	}
	kind, why := cgroup.Detect(opt)
	h := &holder{
		logins: devicepolicy.NewLoginGuard(cgroup.Hierarchy{}, loginsCgroup(s), s.RunDir, cgroup.Info{}),
		follow: cgroup.NewProcesses(briefly(why)), launcher: worker.Exec{Stderr: os.Stderr}, close: func() {},
		units: &mps.Detached{Dir: filepath.Join(s.RunDir, "units")},
	}
	keepers := &launch.Keepers{Dir: filepath.Join(s.StateDir, "output"), Program: s.Start}
	h.programs = leases.KeptPrograms{Keepers: keepers, Walls: h.follow, Follow: h.follow}
	// One port is not known yet: nobody is asked before it is.
	h.visitors = cgroup.NewVisitors(cgroup.VisitorsOptions{Elsewhere: func(pid int) bool { _, ok := h.port.Owner(pid); return ok }})
	switch kind {
	case cgroup.KindSystemd:
		return h.onSystemd(ctx, s, log, tell)
	case cgroup.KindCgroupfs:
		return h.onCgroupfs(ctx, s, keepers, tell)
	case cgroup.KindProcesses:
	}
	h.port = h.follow
	return h, nil
}

// briefly leaves the reason and drops what follows from it, which status says by itself.
func briefly(why string) string {
	s, _, _ := strings.Cut(why, ":")
	return s
}

func (h *holder) onSystemd(ctx context.Context, s Settings, log *slog.Logger, tell heard) (*holder, error) {
	a, err := systemd.Open(ctx, systemd.Options{Log: log, Walls: lookAtWalls(log), OnReload: tell.reloaded, OnLogins: tell.logins, OnUnit: tell.unit})
	if err != nil {
		return nil, err
	}
	h.port, h.books, h.services, h.close = a, a, a, a.Close
	h.logins = devicepolicy.NewLoginGuard(a.Hierarchy(), loginsCgroup(s), s.RunDir, a.Info())
	h.units = systemUnits{a}
	h.launcher = systemWorkers{a}
	h.programs = leases.UnitPrograms{A: a, Program: s.Start}
	h.follow = cgroup.NewProcesses("the spec says enforce: observe")
	// The thawer is a unit of its own, which the package ships.
	h.guard, err = cgroup.Guarded(a, cgroup.GuardOptions{RunDir: s.RunDir})
	return h, err
}

// lookAtWalls counts the device programs of a cgroup; nil where the kernel does not let them be counted.
func lookAtWalls(log *slog.Logger) func(dir string) (int, error) {
	h, err := cgroup.FindHierarchy()
	if err == nil {
		_, err = devices.Attached(h.Mount)
	}
	if err != nil {
		log.Warn("device programs cannot be looked at: systemd's word about walls is taken", "error", err)
		return nil
	}
	return func(dir string) (int, error) {
		n, err := devices.Attached(dir)
		if errors.Is(err, devices.ErrNoCgroup) {
			err = cgroup.ErrNotFound
		}
		return n, err
	}
}

func (h *holder) onCgroupfs(ctx context.Context, s Settings, keepers *launch.Keepers, tell heard) (*holder, error) {
	t, err := cgroup.NewTree(cgroup.TreeOptions{Subtree: s.CgroupRoot})
	if err != nil {
		return nil, err
	}
	h.port = t
	h.books = adoption.LoginFolders{H: t.Hierarchy(), Top: loginsCgroup(s), Name: tell.userName}
	h.logins = devicepolicy.NewLoginGuard(t.Hierarchy(), loginsCgroup(s), s.RunDir, t.Info())
	h.follow = cgroup.NewProcesses("the spec says enforce: observe")
	h.programs = leases.KeptPrograms{Keepers: keepers, Walls: t, Follow: h.follow}
	if h.guard, err = cgroup.Guarded(t, cgroup.GuardOptions{RunDir: s.RunDir}); err != nil {
		return nil, err
	}
	return h, startThaw(ctx, s, h.guard, h.launcher)
}

// startThaw starts the thawer where no service manager does, unless one runs already: it outlives the daemon.
func startThaw(ctx context.Context, s Settings, guard *cgroup.Guard, launcher worker.Launcher) error {
	if guard.Ready() == nil {
		return nil
	}
	if _, err := launcher.Launch(ctx, "gpushare-thaw", []string{s.Thaw, "--run-dir", s.RunDir}, []string{"PATH=/usr/bin:/bin"}); err != nil {
		return fmt.Errorf("cannot start the thawer: %w", err)
	}
	// It takes its lock within moments; until then nobody is frozen, which is all that depends on it.
	return nil
}

// systemUnits starts MPS control daemons as units of systemd.
type systemUnits struct{ a *systemd.Adapter }

// StartService starts a service that lives on when the daemon ends.
func (u systemUnits) StartService(ctx context.Context, s mps.Service) error {
	env := map[string]string{}
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	out := systemd.Service{
		Name: unitBase(s.Name), Description: s.Description, Argv: s.Argv, Env: env, WorkingDirectory: s.Dir, RestartDelay: s.RestartAfter,
		Type: "exec",
	}
	if s.Restart {
		out.Restart = "on-failure"
	}
	err := u.a.StartService(ctx, out)
	if errors.Is(err, systemd.ErrExists) {
		return nil // It runs already: what is wanted of it is verified by its effect.
	}
	return err
}

// StopService ends every process of the service.
func (u systemUnits) StopService(ctx context.Context, name string, timeout time.Duration) error {
	return u.a.StopService(ctx, unitBase(name), timeout)
}

// ServiceState reads the service's state.
func (u systemUnits) ServiceState(ctx context.Context, name string) (mps.ServiceState, error) {
	s, err := u.a.ServiceState(ctx, unitBase(name))
	if errors.Is(err, cgroup.ErrNotFound) {
		return mps.ServiceState{}, nil
	}
	if err != nil {
		return mps.ServiceState{}, err
	}
	return mps.ServiceState{Known: true, Running: s.Running(), PID: s.MainPID, Result: s.Result}, nil
}

func unitBase(name string) string { return strings.TrimSuffix(name, ".service") }

// systemWorkers starts NVML workers as units of their own: one that hangs inside the driver must not keep the daemon's
// unit from being stopped or restarted.
type systemWorkers struct{ a *systemd.Adapter }

// Launch starts a worker and returns when systemd runs it.
func (w systemWorkers) Launch(ctx context.Context, name string, argv, env []string) (worker.Process, error) {
	vars := map[string]string{}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = v
	}
	err := w.a.StartService(ctx, systemd.Service{Name: name, Description: "gpushare NVML worker", Argv: argv, Env: vars, Type: "exec"})
	if err != nil {
		return nil, err
	}
	state, err := w.a.ServiceState(ctx, name)
	if err != nil || state.MainPID == 0 {
		return nil, fmt.Errorf("cannot launch %s: it ended at once (%s): %w", name, state.Result, err)
	}
	start, err := procfs.Start(state.MainPID)
	if err != nil {
		return nil, fmt.Errorf("cannot launch %s: it ended at once: %w", name, err)
	}
	fd, err := procfs.OpenPidfd(state.MainPID, start)
	if err != nil {
		return nil, fmt.Errorf("cannot launch %s: it ended at once: %w", name, err)
	}
	p := &unitWorker{fd: fd, done: make(chan struct{})}
	go func() { // ends with the process
		defer close(p.done)
		_ = fd.Wait(context.Background()) // its end is all that is waited for
	}()
	return p, nil
}

// unitWorker is a worker that is nobody's child. Its descriptor is let go of with the daemon: a Kill may come at any time.
type unitWorker struct {
	fd   *procfs.Pidfd
	done chan struct{}
}

// PID is the worker's.
func (p *unitWorker) PID() int { return p.fd.PID() }

// Done is closed when it has ended.
func (p *unitWorker) Done() <-chan struct{} { return p.done }

// Kill sends SIGKILL and does not wait.
func (p *unitWorker) Kill() error {
	if err := p.fd.Signal(unix.SIGKILL); err != nil && !p.fd.Ended() {
		return fmt.Errorf("cannot kill worker %d: %w", p.PID(), err)
	}
	return nil
}

// loginsCgroup is the cgroup that holds the logins of this host; empty when none is known to.
func loginsCgroup(s Settings) string {
	if s.Logins != "" || s.Systemd == "off" {
		return s.Logins
	}
	if kind, _ := cgroup.Detect(cgroup.DetectOptions{}); kind == cgroup.KindSystemd {
		return devicepolicy.SystemdLogins
	}
	return ""
}

// AttachWalls closes the GPUs to logins before there are any: at boot the daemon comes later, and the driver perhaps
// later still. What it did is one line on out.
func AttachWalls(s Settings, out io.Writer) error {
	return devicepolicy.AttachWalls(s.HostRoot, s.StateDir, loginsCgroup(s), out)
}
