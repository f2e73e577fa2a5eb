package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

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
	can, err := s.abilities(ctx)
	if err != nil {
		return fmt.Errorf("cannot start MPS on %s: %w", set.GPU, err)
	}
	single := !can.MultiUser
	if same {
		single = rec.SingleUser // as it was started
	}
	if err := errors.Join(l.create(), l.writeRecord(record{Settings: set, Previous: previous, SingleUser: single})); err != nil {
		return fmt.Errorf("cannot start MPS on %s: %w", set.GPU, err)
	}
	if !same {
		err = s.startLocked(ctx, l, s.Service(set, can), unit)
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
func (s *Supervisor) startLocked(ctx context.Context, l layout, service Service, unit ServiceState) error {
	if unit.Running || len(unit.Leftovers) > 0 {
		if err := s.shutDown(ctx, l, unit); err != nil {
			return err
		}
	}
	if err := s.Units.StartService(ctx, service); err != nil {
		return err
	}
	return s.awaitGreeting(ctx, l, service.Name)
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
