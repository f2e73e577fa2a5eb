package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Timeouts and limits.
const (
	startTimeout       = 30 * time.Second       // from the start of the unit to its greeting, which is slow with many GPUs
	startPoll          = 20 * time.Millisecond  // there is no event for a socket that starts to answer
	quitTimeout        = 10 * time.Second       // for servers to end after their clients were terminated
	stopTimeout        = 5 * time.Second        // from SIGTERM to SIGKILL of the unit
	quitMargin         = 500 * time.Millisecond // added to the timeout that the program gets
	maxMissedGreetings = 3                      // in a row, until a daemon counts as unresponsive
	readInterval       = 15 * time.Second       // each reading of lists and limits costs a process and some log lines
	openFiles          = 16384                  // as NVIDIA's documentation recommends for the server
)

// Supervisor runs the control daemons of a node. Set the fields before the first use. Its methods may be called
// concurrently, but not Start and Stop for one GPU at a time.
type Supervisor struct {
	Units   Units
	Control string // absolute path of nvidia-cuda-mps-control
	RunDir  string // for instance /run/gpushare/mps
	Log     *slog.Logger
	Now     func() time.Time

	mu      sync.Mutex // guards what follows
	gpus    map[gpu.UUID]*gpuState
	version *string // of the control program; nil until it was read
}

// gpuState is the state of one control daemon that is kept between two observations.
type gpuState struct {
	last            atomic.Pointer[State] // the last observation; nil also when no daemon was found
	mu              sync.Mutex            // held during observations and changes; protects the rest
	unitChecked     bool                  // whether there is a unit without a record
	foreign         bool                  // there is a unit without a record
	missedGreetings int
	read            time.Time // time of the reading
	pid             int       // of the control daemon
	reading         reading
}

// reading is what a control daemon reports.
type reading struct {
	servers, clients []int
	drift            string // how its defaults differ from the settings
	fault            bool   // a server has a fatal fault
}

func (s *Supervisor) layout(id gpu.UUID) layout {
	return layout{dir: filepath.Join(s.RunDir, shortID(id))}
}

func (s *Supervisor) gpuState(id gpu.UUID) *gpuState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gpus == nil {
		s.gpus = map[gpu.UUID]*gpuState{}
	}
	w := s.gpus[id]
	if w == nil {
		w = &gpuState{}
		s.gpus[id] = w
	}
	return w
}

// Service is the unit of a GPU's control daemon. It runs in the foreground, because a start in the background reports success
// even when it fails. It has one server for all users and nothing of gpushared's environment, which the server would inherit.
// The GPU is given by its UUID, so that it is device 0 for the daemon.
func (s *Supervisor) Service(set Settings) Service {
	l := s.layout(set.GPU)
	return Service{
		Name:        UnitName(set.GPU),
		Description: "CUDA MPS control daemon of " + string(set.GPU),
		// Every version since 535 accepts the long form with one dash.
		Argv: []string{s.Control, "-f", "-multiuser-server"},
		Env: append(environment(s.Control, l.pipe()),
			"CUDA_MPS_LOG_DIRECTORY="+l.logs(),
			"CUDA_VISIBLE_DEVICES="+string(set.GPU)),
		Dir:          "/",
		Restart:      true,
		RestartAfter: 2 * time.Second,
		OpenFiles:    openFiles,
	}
}

// Observe observes the control daemon of one GPU; nil when there is none. It changes nothing on the node. During Start and
// Stop it returns the last observation, because it must not take as long as a change.
func (s *Supervisor) Observe(ctx context.Context, id gpu.UUID) *State {
	w := s.gpuState(id)
	if !w.mu.TryLock() {
		return w.last.Load()
	}
	defer w.mu.Unlock()
	st := s.observeLocked(ctx, id, w)
	w.last.Store(st)
	return st
}

// observeNow is Observe that waits for Start and Stop.
func (s *Supervisor) observeNow(ctx context.Context, id gpu.UUID) *State {
	w := s.gpuState(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	st := s.observeLocked(ctx, id, w)
	w.last.Store(st)
	return st
}

func (s *Supervisor) observeLocked(ctx context.Context, id gpu.UUID, w *gpuState) *State {
	l := s.layout(id)
	rec := l.readRecord()
	if rec == nil && w.unitChecked && !w.foreign {
		return nil
	}
	unit, err := s.Units.ServiceState(ctx, UnitName(id))
	if rec == nil && err == nil {
		w.unitChecked, w.foreign = true, unit.Known
		if !unit.Known {
			return nil
		}
	}
	st := &State{GPU: id, Unit: UnitName(id), PID: unit.PID, Leftovers: unit.Leftovers}
	if rec != nil {
		st.Settings = &rec.Settings
	}
	switch {
	case err != nil && rec == nil:
		return nil
	case err != nil:
		st.Phase, st.Reason = Unresponsive, err.Error()
		return st
	case !unit.Running && rec == nil:
		st.Phase, st.Reason = Stopped, unit.Result
		return st
	case !unit.Running:
		st.Phase, st.Reason = Failed, "its unit does not run"
		if unit.Result != "" {
			st.Reason = "its unit ended: " + unit.Result
		}
		return st
	}
	if w.pid != unit.PID {
		w.pid, w.missedGreetings, w.read = unit.PID, 0, time.Time{}
	}
	if err := greet(ctx, l.pipe()); err != nil {
		w.missedGreetings++
		st.Phase, st.MissedGreetings, st.Reason = Running, w.missedGreetings, err.Error()
		st.Servers, st.Clients = w.reading.servers, w.reading.clients
		switch {
		case w.read.IsZero() && errors.Is(err, ErrNoDaemon) && w.missedGreetings < maxMissedGreetings:
			st.Phase = Starting
		case w.missedGreetings >= maxMissedGreetings:
			st.Phase = Unresponsive
		}
		return st
	}
	w.missedGreetings = 0
	st.Phase = Running
	if now := s.Now(); w.read.IsZero() || now.Sub(w.read) >= readInterval {
		r, err := s.read(ctx, l, rec)
		if err != nil {
			st.Reason = err.Error()
			return st
		}
		w.reading, w.read = r, now
	}
	st.Servers, st.Clients, st.Version = w.reading.servers, w.reading.clients, s.cachedVersion(ctx)
	switch {
	case rec != nil && !l.tenantLinked():
		st.Drift, st.Reason = true, "the tenants' socket is that of a previous control daemon"
	case w.reading.drift != "":
		st.Drift, st.Reason = true, w.reading.drift
	case w.reading.fault:
		st.Reason = "its server has a fatal fault: no new client can join until all of its clients have ended"
	}
	return st
}

// read queries the defaults, the servers and their clients of a control daemon that greets, in at most two runs of the program.
func (s *Supervisor) read(ctx context.Context, l layout, rec *record) (reading, error) {
	c := control{program: s.Control, pipeDir: l.pipe()}
	o, err := c.overview(ctx)
	if err != nil {
		return reading{}, err
	}
	r := reading{servers: o.servers}
	if rec != nil {
		r.drift = o.drift(rec.Settings)
	}
	if len(o.servers) == 0 {
		return r, nil
	}
	var queries []string
	for _, server := range o.servers {
		queries = append(queries, serverQuery(server))
	}
	out, err := c.query(ctx, strings.Join(queries, "\n"))
	if err == nil {
		r.clients, r.fault, err = parseServers(out)
	}
	return r, err
}

func (c control) overview(ctx context.Context) (overview, error) {
	out, err := c.query(ctx, overviewQuery)
	if err != nil {
		return overview{}, err
	}
	return parseOverview(out)
}

// drift describes how the active defaults differ from the settings; empty: they do not.
func (o overview) drift(set Settings) string {
	switch {
	case set.Threads > 0 && math.Abs(o.threads-set.Threads) > 0.06: // the daemon prints one decimal
		return fmt.Sprintf("its default thread percentage is %s, it should be %s", percentText(o.threads), percentText(set.Threads))
	case set.Memory > 0 && o.memory != readBack(set.Memory):
		return fmt.Sprintf("its default memory limit reads back as %q, it should be %q", o.memory, readBack(set.Memory))
	}
	return ""
}

// apply sets the defaults and reads them back, because setting reports no errors.
func (c control) apply(ctx context.Context, set Settings) error {
	if set.Threads > 0 {
		if _, err := c.query(ctx, "set_default_active_thread_percentage "+percentText(set.Threads)); err != nil {
			return err
		}
	}
	if set.Memory > 0 {
		limit, err := FormatMemory(set.Memory, 0)
		if err != nil {
			return err
		}
		if _, err := c.query(ctx, "set_default_device_pinned_mem_limit 0 "+limit); err != nil {
			return err
		}
	}
	if set.Threads == 0 && set.Memory == 0 {
		return nil
	}
	o, err := c.overview(ctx)
	if err != nil {
		return err
	}
	if drift := o.drift(set); drift != "" {
		return errors.New(drift + " after it was set")
	}
	return nil
}

// Start starts MPS on a GPU with these settings. Of a control daemon that greets and has the same settings only the defaults
// and the tenants' socket are set again. Any other is stopped first, with its clients. When Start fails, MPS does not run;
// only the record is kept until Forget.
func (s *Supervisor) Start(ctx context.Context, set Settings, previous gpu.ComputeMode) error {
	if err := s.validate(set); err != nil {
		return err
	}
	w := s.gpuState(set.GPU)
	w.mu.Lock()
	defer w.mu.Unlock()
	l := s.layout(set.GPU)
	name := UnitName(set.GPU)
	rec := l.readRecord()
	unit, err := s.Units.ServiceState(ctx, name)
	if err != nil {
		return fmt.Errorf("cannot start MPS on %s: %w", set.GPU, err)
	}
	same := rec != nil && rec.Settings.sameServer(set) && unit.Running && greet(ctx, l.pipe()) == nil
	if rec != nil && previous == "" {
		previous = rec.Previous
	}
	if err := errors.Join(l.create(), l.writeRecord(record{Settings: set, Previous: previous})); err != nil {
		return fmt.Errorf("cannot start MPS on %s: %w", set.GPU, err)
	}
	if !same {
		err = s.startLocked(ctx, l, set, unit)
	}
	if err == nil {
		err = s.finishStart(ctx, l, set)
	}
	w.read, w.missedGreetings = time.Time{}, 0
	if err != nil {
		// Also when ctx has ended, no unit may be left behind.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout+startTimeout)
		defer cancel()
		if e := s.Units.StopService(stop, name, stopTimeout); e != nil {
			err = fmt.Errorf("%w; and cannot stop it: %w", err, e)
		}
		return fmt.Errorf("cannot start MPS on %s: %w", set.GPU, err)
	}
	s.Log.Info("MPS started", "gpu", set.GPU, "unit", name, "deny_bypass", set.DenyBypass)
	return nil
}

// validate refuses settings that the program would misread or ignore.
func (s *Supervisor) validate(set Settings) error {
	if set.GPU == "" || len(shortID(set.GPU)) < 8 {
		return fmt.Errorf("cannot start MPS on %q: not a UUID", set.GPU)
	}
	if set.Threads < 0 || set.Threads > 100 || set.Threads != set.Threads {
		return fmt.Errorf("cannot start MPS on %s: a thread percentage of %s is not above 0 and at most 100", set.GPU, percentText(set.Threads))
	}
	if set.Memory > 0 {
		if _, err := FormatMemory(set.Memory, 0); err != nil {
			return fmt.Errorf("cannot start MPS on %s: %w", set.GPU, err)
		}
	}
	if !filepath.IsAbs(s.Control) {
		return fmt.Errorf("cannot start MPS on %s: the path %q of the control program is not absolute", set.GPU, s.Control)
	}
	if info, err := os.Stat(s.Control); err != nil || info.Mode()&0o111 == 0 {
		return fmt.Errorf("cannot start MPS on %s: no program at %s; install the driver's MPS package or set mps_control", set.GPU, s.Control)
	}
	return nil
}

// startLocked stops what runs and starts the unit.
func (s *Supervisor) startLocked(ctx context.Context, l layout, set Settings, unit ServiceState) error {
	if unit.Running || len(unit.Leftovers) > 0 {
		if err := s.shutDown(ctx, l, unit); err != nil {
			return err
		}
	}
	if err := s.Units.StartService(ctx, s.Service(set)); err != nil {
		return err
	}
	return s.awaitGreeting(ctx, l, UnitName(set.GPU))
}

// awaitGreeting waits until the daemon greets. It returns an error when its unit has ended.
func (s *Supervisor) awaitGreeting(ctx context.Context, l layout, name string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		err := greet(ctx, l.pipe())
		if err == nil {
			return nil
		}
		if unit, e := s.Units.ServiceState(ctx, name); e == nil && !unit.Running {
			return fmt.Errorf("its control daemon %s", describeExit(unit.Result))
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// describeExit adds the meaning of known exit codes to a result, because the control program prints no reason.
func describeExit(result string) string {
	switch result {
	case "":
		return "ended immediately"
	case "exited with 100":
		return "found no usable GPU (it exited with 100)"
	case "exited with 244":
		return "found no CUDA driver library (it exited with 244)"
	}
	return result
}

func (s *Supervisor) finishStart(ctx context.Context, l layout, set Settings) error {
	c := control{program: s.Control, pipeDir: l.pipe()}
	if err := c.apply(ctx, set); err != nil {
		return err
	}
	// The limits are active before tenants get the socket. Only with servers of the same user can the log be restricted.
	return errors.Join(l.restrictLog(), l.linkTenant())
}

// Stop stops MPS on a GPU. Clients that still run are terminated, which they see as CUDA error 810. The record of the GPU is
// kept until Forget.
func (s *Supervisor) Stop(ctx context.Context, id gpu.UUID) error {
	w := s.gpuState(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	unit, err := s.Units.ServiceState(ctx, UnitName(id))
	if err == nil {
		err = s.shutDown(ctx, s.layout(id), unit)
	}
	w.read, w.missedGreetings, w.unitChecked = time.Time{}, 0, false
	if err != nil {
		return fmt.Errorf("cannot stop MPS on %s: %w", id, err)
	}
	return nil
}

// shutDown stops a control daemon in the order with the least damage: no new clients, clients terminated, servers ended, and
// then the unit with all its processes. A stage may fail or hang; the next one is stronger.
func (s *Supervisor) shutDown(ctx context.Context, l layout, unit ServiceState) error {
	// Tenants must not join again meanwhile.
	if err := os.Remove(filepath.Join(l.tenant(), "control")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot close the tenants' MPS socket: %w", err)
	}
	if unit.Running {
		if err := s.quit(ctx, l); err != nil {
			s.Log.Warn("cannot quit the MPS control daemon; its unit is stopped", "dir", l.dir, "error", err)
		}
	}
	return s.Units.StopService(ctx, unitOf(l), stopTimeout)
}

func unitOf(l layout) string { return "gpushare-mps-" + filepath.Base(l.dir) + ".service" }

func (s *Supervisor) quit(ctx context.Context, l layout) error {
	c := control{program: s.Control, pipeDir: l.pipe()}
	r, err := s.read(ctx, l, nil)
	if err != nil {
		return err
	}
	for _, server := range r.servers {
		out, err := c.query(ctx, fmt.Sprintf("get_client_list %d", server))
		if err != nil {
			return err
		}
		pids, err := parsePIDs(out)
		if err != nil {
			continue
		}
		for _, pid := range pids {
			// A client that is killed during a kernel can make the server hang for all clients; a terminated one cannot.
			if _, err := c.query(ctx, fmt.Sprintf("terminate_client %d %d", server, pid)); err != nil {
				return err
			}
		}
	}
	// Its exit code says that a server has failed at some time, not that quit failed.
	_, err = c.queryWithin(ctx, fmt.Sprintf("quit -t %d", int(quitTimeout/time.Second)), quitTimeout+quitMargin)
	return err
}

// Previous is the compute mode from before bypass was denied, empty when none is recorded.
func (s *Supervisor) Previous(id gpu.UUID) gpu.ComputeMode {
	if rec := s.layout(id).readRecord(); rec != nil && rec.Settings.DenyBypass {
		return rec.Previous
	}
	return ""
}

// Forget removes the files of a GPU whose MPS was stopped.
func (s *Supervisor) Forget(id gpu.UUID) error { return s.layout(id).remove() }

// Version is the CUDA version of the control program, "13.0"; empty when the program is too old to report it.
func (s *Supervisor) Version(ctx context.Context) (string, error) { return version(ctx, s.Control) }

// cachedVersion reads the version once: an upgraded package takes effect at the next start of gpushared.
func (s *Supervisor) cachedVersion(ctx context.Context) string {
	s.mu.Lock()
	known := s.version
	s.mu.Unlock()
	if known != nil {
		return *known
	}
	v, err := s.Version(ctx)
	if err != nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = &v
	return v
}

// recordPrevious records the settings that are about to be started and the previous compute mode.
func (s *Supervisor) recordPrevious(set Settings, previous gpu.ComputeMode) error {
	if err := s.validate(set); err != nil {
		return err
	}
	l := s.layout(set.GPU)
	if rec := l.readRecord(); rec != nil {
		// The running daemon has the old settings until it is replaced; only the previous mode is new.
		set = rec.Settings
		set.DenyBypass = true
	}
	if err := errors.Join(l.create(), l.writeRecord(record{Settings: set, Previous: previous})); err != nil {
		return fmt.Errorf("cannot start MPS on %s: %w", set.GPU, err)
	}
	return nil
}
