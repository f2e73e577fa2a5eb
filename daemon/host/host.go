// Package host selects the adapters for this host: systemd, a cgroup v2 subtree of gpushare, or the process tree. It is
// part of the wiring: it decides which adapter serves which part of the daemon.
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
	"github.com/gpushare/gpushare/daemon/fronting"
	"github.com/gpushare/gpushare/daemon/leases"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/kernel/descent"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
	"github.com/gpushare/gpushare/mps/detached"
	"github.com/gpushare/gpushare/systemd"
)

// Host has the adapters of this host.
type Host struct {
	Port        cgroup.Port
	Follow      *cgroup.Processes      // follows processes if nothing may be written
	Attachments *cgroup.Attachments    // of processes in place
	Freezer     *cgroup.JobFreezer     // nil if nothing can be frozen
	Sessions    adoption.SessionSource // nil if logins cannot be listed
	Services    change.Services        // nil if no units can be stopped
	Units       control.Units
	LoginFilter *devicepolicy.LoginFilter
	Launcher    worker.Launcher
	Helper      devicepolicy.Helper
	Front       fronting.Starter
	Packaged    bool // the packages that have the units create the user of the front too
	Programs    Programs
	Descent     *descent.Record // of the processes in scopes; nil without one
	NoDescent   error           // why there is none
	Former      bool            // hierarchies of an earlier version are mounted
	Close       func()
}

// Programs starts detached commands, and keeps their output.
type Programs interface {
	leases.Programs
	leases.Outputs
}

// Options are paths and programs of the host.
type Options struct {
	Systemd    string // "off": it is not used even if it runs
	HostRoot   string // of the host's file systems
	RunDir     string
	StateDir   string
	CgroupRoot string // of the subtree of gpushare
	Start      string // gpushare-start
	Thaw       string // gpushare-thaw
	Front      string // gpushare-front
	Logins     string // the cgroup of logins; empty: detected
}

// HostEvents are the callbacks for changes on the host, and the lookup of user names.
type HostEvents struct {
	Reloaded func()            // the service manager was reloaded: limits and device rules may have changed
	Logins   func()            // logins may have changed
	Unit     func(name string) // a unit may have started or stopped; any if empty
	UserName func(uid int) string
}

// Find selects the strongest adapter that is possible: systemd, a subtree of gpushare on cgroup v2, or the process
// tree.
func Find(ctx context.Context, o Options, log *slog.Logger, events HostEvents) (*Host, error) {
	opt := cgroup.DetectOptions{}
	if o.Systemd == "off" {
		opt.Root = "/nonexistent" // There is no systemd below it.
	}
	kind, why := cgroup.Detect(opt)
	h := &Host{
		LoginFilter: devicepolicy.NewLoginFilter(cgroup.Hierarchy{}, o.LoginsCgroup(), o.RunDir, cgroup.Info{}),
		Follow:      cgroup.NewProcesses(shortReason(why)),
		Launcher:    worker.Exec{Stderr: os.Stderr},
		Helper:      runHelper,
		Front:       childFront{o.Front},
		Close:       func() {},
		Units:       &detached.Services{Dir: filepath.Join(o.RunDir, "units")},
	}
	supervisors := &launch.Supervisors{Dir: filepath.Join(o.StateDir, "output"), Program: o.Start}
	h.Programs = supervisedPrograms{supervisors: supervisors, isolated: h.Follow, followed: h.Follow}
	// h.Port is set below, before the first call.
	h.Attachments = cgroup.NewAttachments(
		cgroup.AttachmentsOptions{InOtherScope: func(pid int) bool { _, ok := h.Port.ScopeOf(pid); return ok }},
	)
	switch kind {
	case cgroup.KindSystemd:
		return h.onSystemd(ctx, o, log, events)
	case cgroup.KindCgroupfs:
		return h.onCgroupfs(ctx, o, log, supervisors, events)
	case cgroup.KindProcesses:
	}
	h.Port = h.Follow
	h.relaySignals(childRelay{o.Start}.start)
	return h, nil
}

// shortReason returns the reason without its consequences, which status reports itself.
func shortReason(why string) string {
	s, _, _ := strings.Cut(why, ":")
	return s
}

func (h *Host) onSystemd(ctx context.Context, o Options, log *slog.Logger, events HostEvents) (*Host, error) {
	a, err := systemd.Open(ctx, systemd.Options{
		Log:            log,
		DevicePrograms: countDevicePrograms(log),
		OnReload:       events.Reloaded,
		OnLogins:       events.Logins,
		OnUnit:         events.Unit,
	})
	if err != nil {
		return nil, err
	}
	h.Port, h.Sessions, h.Services, h.Close = a, a, a, a.Close
	h.LoginFilter = devicepolicy.NewLoginFilter(a.Hierarchy(), o.LoginsCgroup(), o.RunDir, a.Info())
	h.Units = systemUnits{a}
	h.Launcher = systemWorkers{a}
	h.Helper = unitHelper(a)
	h.Front, h.Packaged = unitFront{a, o.Front}, true
	h.Programs = unitPrograms{a: a, program: o.Start}
	h.Follow = cgroup.NewProcesses("the spec says enforce: observe")
	h.relaySignals(unitRelay{a, o.Start}.start)
	h.openRecord(o, log)
	// gpushare-thaw is a unit of its own, which the package installs.
	if err := h.newFreezer(a, a.Hierarchy(), o); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// openRecord opens the record of the processes that descend from those of leases.
func (h *Host) openRecord(o Options, log *slog.Logger) {
	former, err := descent.FormerMounts()
	if err = errors.Join(err, descent.EmptyFormer(former)); err != nil {
		log.Warn("cannot remove the cgroups of an earlier version", "error", err)
	}
	h.Former = len(former) > 0
	h.Descent, h.NoDescent = descent.Open(o.HostRoot, o.CgroupRoot)
	if h.NoDescent != nil {
		h.Descent = nil
		return
	}
	record, closePort := h.Descent, h.Close
	h.Close = func() { _ = record.Close(); closePort() } // What is recorded stays.
}

// newFreezer makes the freezer of the scopes of a port, and of jobs of engines.
func (h *Host) newFreezer(port cgroup.Port, in cgroup.Hierarchy, o Options) error {
	freezer, err := cgroup.NewJobFreezer(port, in, cgroup.FreezerOptions{RunDir: o.RunDir})
	if err != nil {
		return err
	}
	closePort := h.Close
	h.Freezer, h.Close = freezer, func() { _ = freezer.Close(); closePort() } // Nothing is frozen any more.
	return nil
}

// countDevicePrograms returns a function that counts the device programs of a cgroup; nil if the kernel does not allow
// to query them.
func countDevicePrograms(log *slog.Logger) func(dir string) (int, error) {
	h, err := cgroup.FindHierarchy()
	if err == nil {
		_, err = devices.CountPrograms(h.Mount)
	}
	if err != nil {
		log.Warn("cannot query device programs: the state that systemd reports is used", "error", err)
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

func (h *Host) onCgroupfs(
	ctx context.Context, o Options, log *slog.Logger, supervisors *launch.Supervisors, events HostEvents,
) (*Host, error) {
	t, err := cgroup.NewTree(cgroup.TreeOptions{Subtree: o.CgroupRoot})
	if err != nil {
		return nil, err
	}
	h.Port = t
	// Not in the daemon's own cgroup: whatever ends the daemon ends that.
	h.Units = &detached.Services{Dir: filepath.Join(o.RunDir, "units"), Cgroup: filepath.Join(t.Hierarchy().Dir(t.Top()), "services")}
	h.Sessions = loginDirs{h: t.Hierarchy(), top: o.LoginsCgroup(), name: events.UserName}
	h.LoginFilter = devicepolicy.NewLoginFilter(t.Hierarchy(), o.LoginsCgroup(), o.RunDir, t.Info())
	h.Follow = cgroup.NewProcesses("the spec says enforce: observe")
	h.Programs = supervisedPrograms{supervisors: supervisors, isolated: t, followed: h.Follow}
	h.relaySignals(childRelay{o.Start}.start)
	h.openRecord(o, log)
	if err := h.newFreezer(t, t.Hierarchy(), o); err != nil {
		return nil, err
	}
	return h, startThaw(ctx, o, h.Freezer.Freezer, h.Launcher)
}

// startThaw starts gpushare-thaw if no service manager does, unless it runs already: it outlives the daemon.
func startThaw(ctx context.Context, o Options, freezer *cgroup.Freezer, launcher worker.Launcher) error {
	if freezer.Ready() == nil {
		return nil
	}
	if _, err := launcher.Launch(
		ctx, "gpushare-thaw", []string{o.Thaw, "--run-dir", o.RunDir}, []string{"PATH=/usr/bin:/bin"},
	); err != nil {
		return fmt.Errorf("cannot start gpushare-thaw: %w", err)
	}
	// It takes its lock soon; until then nothing is frozen.
	return nil
}

// systemUnits starts MPS control daemons as systemd units.
type systemUnits struct{ a *systemd.Adapter }

// StartService starts a service that continues when the daemon ends.
func (u systemUnits) StartService(ctx context.Context, s mps.Service) error {
	env := map[string]string{}
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	out := systemd.Service{
		Name: unitBase(s.Name), Description: s.Description, Argv: s.Argv, Env: env, WorkingDirectory: s.Dir, OpenFiles: s.OpenFiles,
		Type: "exec", KeepResult: true,
	}
	err := u.a.StartService(ctx, out)
	if errors.Is(err, systemd.ErrExists) {
		return nil // It runs already; the caller verifies its effect.
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
	return mps.ServiceState{Known: true, Running: s.Running(), PID: s.MainPID, Result: s.End()}, nil
}

// LastLines returns what the service printed last, by the journal.
func (u systemUnits) LastLines(ctx context.Context, name string, n int) []string {
	return u.a.ServiceOutput(ctx, unitBase(name), n)
}

func unitBase(name string) string { return strings.TrimSuffix(name, ".service") }

// systemWorkers starts NVML workers as units of their own: a worker that hangs in the driver must not prevent that the
// daemon's unit is stopped or restarted.
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
		return nil, fmt.Errorf("cannot launch %s: it exited at once (%s): %w", name, state.Result, err)
	}
	p, err := openMain(state.MainPID, state.Cgroup)
	if err != nil {
		return nil, fmt.Errorf("cannot launch %s: %w", name, err)
	}
	return p, nil
}

// openMain opens the main process of a unit, by the pid and the cgroup that systemd reported. Since then it may have ended, and another
// process may have its pid: that one is not in its cgroup.
func openMain(pid int, cg string) (*unitWorker, error) {
	start, err := procfs.Start(pid)
	if err != nil {
		return nil, fmt.Errorf("it exited at once: %w", err)
	}
	fd, err := procfs.OpenPidfd(pid, start)
	if err != nil {
		return nil, fmt.Errorf("it exited at once: %w", err)
	}
	at, err := procfs.Cgroup(pid)
	if err == nil && (cg == "" || !cgroup.Below(at, cg)) {
		err = fmt.Errorf("pid %d is another process by now, in the cgroup %s", pid, at)
	}
	if err == nil && fd.Ended() {
		err = procfs.ErrNoProcess // The cgroup may be that of the next one with its pid.
	}
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("it exited at once: %w", err)
	}
	p := &unitWorker{fd: fd, done: make(chan struct{})}
	go func() { // ends with the process
		defer close(p.done)
		_ = fd.Wait(context.Background()) // only its end matters
	}()
	return p, nil
}

// unitWorker is a worker that is not a child of the daemon. Its descriptor stays open while something refers to it: Kill may
// be called at any time.
type unitWorker struct {
	fd   *procfs.Pidfd
	done chan struct{}
}

// PID returns the worker's pid.
func (p *unitWorker) PID() int { return p.fd.PID() }

// Done is closed when the worker has exited.
func (p *unitWorker) Done() <-chan struct{} { return p.done }

// Kill sends SIGKILL and does not wait.
func (p *unitWorker) Kill() error {
	if err := p.fd.Signal(context.Background(), unix.SIGKILL); err != nil && !p.fd.Ended() {
		return fmt.Errorf("cannot kill pid %d (gpushare-nvml): %w", p.PID(), err)
	}
	return nil
}

// LoginsCgroup returns the cgroup of logins of this host; empty if there is none.
func (o Options) LoginsCgroup() string {
	if o.Logins != "" || o.Systemd == "off" {
		return o.Logins
	}
	if kind, _ := cgroup.Detect(cgroup.DetectOptions{}); kind == cgroup.KindSystemd {
		return devicepolicy.SystemdLogins
	}
	return ""
}
