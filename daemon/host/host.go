// Package host finds what holds processes on this host and what tells of it: systemd, a cgroup v2 subtree of our own, or
// the process tree. It is part of the wiring: it says which adapter serves which part of the daemon.
package host

import (
	"context"
	"errors"
	"fmt"
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

// Host is what holds processes on this host, and what starts those that are not ours to parent.
type Host struct {
	Port        cgroup.Port
	Follow      *cgroup.Processes      // what follows processes where nothing may be written
	Attachments *cgroup.Attachments    // for those that stay in a cgroup that is not ours
	Freezer     *cgroup.Freezer        // nil where nothing can be frozen
	Sessions    adoption.SessionSource // nil where nobody can tell who is logged in
	Services    change.Services        // nil where no units can be stopped
	Units       mps.Units
	LoginFilter *devicepolicy.LoginFilter
	Launcher    worker.Launcher
	Programs    Programs
	Close       func()
}

// Programs starts commands that nobody waits for, and keeps what they print.
type Programs interface {
	leases.Programs
	leases.Outputs
}

// Options say where things are.
type Options struct {
	Systemd    string // "off": it is not used even where it runs
	RunDir     string
	StateDir   string
	CgroupRoot string // of a subtree of our own
	Start      string // the program that becomes a command
	Thaw       string // the program that thaws what expired
	Logins     string // the cgroup that holds logins; empty: found
}

// HostEvents is told of what may have changed on the host, and tells who somebody is.
type HostEvents struct {
	Reloaded func()            // limits and device rules: the service manager read its configuration again
	Logins   func()            // who is logged in
	Unit     func(name string) // whether a unit runs; any when empty
	UserName func(uid int) string
}

// Find takes the strongest adapter that fits: systemd, a subtree of our own on cgroup v2, or the process tree.
func Find(ctx context.Context, o Options, log *slog.Logger, events HostEvents) (*Host, error) {
	opt := cgroup.DetectOptions{}
	if o.Systemd == "off" {
		opt.Root = "/nonexistent" // Where no systemd is found.
	}
	kind, why := cgroup.Detect(opt)
	h := &Host{
		LoginFilter: devicepolicy.NewLoginFilter(cgroup.Hierarchy{}, o.LoginsCgroup(), o.RunDir, cgroup.Info{}),
		Follow:      cgroup.NewProcesses(shortReason(why)), Launcher: worker.Exec{Stderr: os.Stderr}, Close: func() {},
		Units: &mps.Detached{Dir: filepath.Join(o.RunDir, "units")},
	}
	supervisors := &launch.Supervisors{Dir: filepath.Join(o.StateDir, "output"), Program: o.Start}
	h.Programs = supervisedPrograms{supervisors: supervisors, isolated: h.Follow, followed: h.Follow}
	// One port is not known yet: nobody is asked before it is.
	h.Attachments = cgroup.NewAttachments(cgroup.AttachmentsOptions{InOtherScope: func(pid int) bool { _, ok := h.Port.ScopeOf(pid); return ok }})
	switch kind {
	case cgroup.KindSystemd:
		return h.onSystemd(ctx, o, log, events)
	case cgroup.KindCgroupfs:
		return h.onCgroupfs(ctx, o, supervisors, events)
	case cgroup.KindProcesses:
	}
	h.Port = h.Follow
	return h, nil
}

// shortReason leaves the reason and drops what follows from it, which status says by itself.
func shortReason(why string) string {
	s, _, _ := strings.Cut(why, ":")
	return s
}

func (h *Host) onSystemd(ctx context.Context, o Options, log *slog.Logger, events HostEvents) (*Host, error) {
	a, err := systemd.Open(ctx, systemd.Options{Log: log, DevicePrograms: countDevicePrograms(log), OnReload: events.Reloaded, OnLogins: events.Logins, OnUnit: events.Unit})
	if err != nil {
		return nil, err
	}
	h.Port, h.Sessions, h.Services, h.Close = a, a, a, a.Close
	h.LoginFilter = devicepolicy.NewLoginFilter(a.Hierarchy(), o.LoginsCgroup(), o.RunDir, a.Info())
	h.Units = systemUnits{a}
	h.Launcher = systemWorkers{a}
	h.Programs = unitPrograms{a: a, program: o.Start}
	h.Follow = cgroup.NewProcesses("the spec says enforce: observe")
	// The thawer is a unit of its own, which the package ships.
	h.Freezer, err = cgroup.NewFreezer(a, cgroup.FreezerOptions{RunDir: o.RunDir})
	return h, err
}

// countDevicePrograms counts the device programs of a cgroup; nil where the kernel does not let them be counted.
func countDevicePrograms(log *slog.Logger) func(dir string) (int, error) {
	h, err := cgroup.FindHierarchy()
	if err == nil {
		_, err = devices.CountPrograms(h.Mount)
	}
	if err != nil {
		log.Warn("device programs cannot be looked at: systemd's word about walls is taken", "error", err)
		return nil
	}
	return func(dir string) (int, error) {
		n, err := devices.CountPrograms(dir)
		if errors.Is(err, devices.ErrNoCgroup) {
			err = cgroup.ErrNotFound
		}
		return n, err
	}
}

func (h *Host) onCgroupfs(ctx context.Context, o Options, supervisors *launch.Supervisors, events HostEvents) (*Host, error) {
	t, err := cgroup.NewTree(cgroup.TreeOptions{Subtree: o.CgroupRoot})
	if err != nil {
		return nil, err
	}
	h.Port = t
	h.Sessions = loginDirs{h: t.Hierarchy(), top: o.LoginsCgroup(), name: events.UserName}
	h.LoginFilter = devicepolicy.NewLoginFilter(t.Hierarchy(), o.LoginsCgroup(), o.RunDir, t.Info())
	h.Follow = cgroup.NewProcesses("the spec says enforce: observe")
	h.Programs = supervisedPrograms{supervisors: supervisors, isolated: t, followed: h.Follow}
	if h.Freezer, err = cgroup.NewFreezer(t, cgroup.FreezerOptions{RunDir: o.RunDir}); err != nil {
		return nil, err
	}
	return h, startThaw(ctx, o, h.Freezer, h.Launcher)
}

// startThaw starts the thawer where no service manager does, unless one runs already: it outlives the daemon.
func startThaw(ctx context.Context, o Options, freezer *cgroup.Freezer, launcher worker.Launcher) error {
	if freezer.Ready() == nil {
		return nil
	}
	if _, err := launcher.Launch(ctx, "gpushare-thaw", []string{o.Thaw, "--run-dir", o.RunDir}, []string{"PATH=/usr/bin:/bin"}); err != nil {
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

// LoginsCgroup is the cgroup that holds the logins of this host; empty when none is known to.
func (o Options) LoginsCgroup() string {
	if o.Logins != "" || o.Systemd == "off" {
		return o.Logins
	}
	if kind, _ := cgroup.Detect(cgroup.DetectOptions{}); kind == cgroup.KindSystemd {
		return devicepolicy.SystemdLogins
	}
	return ""
}
