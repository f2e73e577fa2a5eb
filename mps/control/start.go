package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpushare/gpushare/mps"
)

// Start starts MPS on a device with these settings. A control daemon that runs is stopped first, with its clients. When Start
// fails, MPS does not run, and what its program said is in the error and in the state; the record is kept until Forget.
func (s *Supervisor) Start(ctx context.Context, set mps.Settings) error {
	w := s.gpuState(set.Device())
	w.mu.Lock()
	defer w.mu.Unlock()
	err := s.validate(set)
	if err == nil {
		err = s.startLocked(ctx, w, set)
	}
	if err != nil {
		w.restarts.failed(s.Now(), err.Error())
		return fmt.Errorf("cannot start MPS on %s: %w", set.Device(), err)
	}
	w.restarts.started(s.Now())
	s.Log.Info("MPS started", "gpu", set.GPU, "instance", set.Instance, "unit", mps.UnitName(set.Device()), "deny_bypass", set.DenyBypass)
	return nil
}

func (s *Supervisor) startLocked(ctx context.Context, w *gpuState, set mps.Settings) error {
	l, name := s.layout(set.Device()), mps.UnitName(set.Device())
	unit, err := s.Units.ServiceState(ctx, name)
	if err != nil {
		return err
	}
	can, err := s.abilities(ctx)
	if err != nil {
		return err
	}
	if err := prepare(
		l, record{Settings: set, SingleUser: !can.MultiUser, AnyoneSets: !can.OwnerOnly, AnyoneSetsServers: !can.ServersOwnerOnly},
	); err != nil {
		return err
	}
	w.pid, w.read, w.missedGreetings = 0, time.Time{}, 0
	if unit.Running || len(unit.Leftovers) > 0 {
		if err := s.shutDown(ctx, l, unit); err != nil {
			return err
		}
	}
	err = errors.Join(l.forgetFiles(), l.closePipe())
	if err == nil {
		err = s.Units.StartService(ctx, s.Service(set, can))
	}
	if err == nil {
		err = s.awaitGreeting(ctx, l, name)
	}
	if err == nil {
		err = s.restrictStarted(set.Device())
	}
	if err == nil {
		err = s.setUp(ctx, l, set)
	}
	if err == nil {
		return nil
	}
	// Also when ctx has ended, no unit may be left behind.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout+startTimeout)
	defer cancel()
	if e := s.Units.StopService(stop, name, stopTimeout); e != nil {
		err = fmt.Errorf("%w; and cannot stop it: %w", err, e)
	}
	return err
}

// Correct sets the limits and the tenants' socket of the control daemon that runs. It stops no client, also when it fails.
func (s *Supervisor) Correct(ctx context.Context, set mps.Settings) error {
	w := s.gpuState(set.Device())
	w.mu.Lock()
	defer w.mu.Unlock()
	l := s.layout(set.Device())
	w.read = time.Time{}
	err := s.validate(set)
	if err == nil {
		next := record{}
		if rec := l.readRecord(); rec != nil {
			next = *rec // as it was started
		}
		next.Settings = set
		err = prepare(l, next)
	}
	if err == nil {
		err = l.restoreFiles()
	}
	if err == nil {
		err = s.awaitGreeting(ctx, l, mps.UnitName(set.Device()))
	}
	if err == nil {
		err = s.setUp(ctx, l, set)
	}
	if err == nil {
		err = s.setServers(ctx, client{program: s.Control, pipeDir: l.pipe(), greeted: true}, w, set)
	}
	if err != nil {
		return fmt.Errorf("cannot set up MPS on %s again: %w", set.Device(), err)
	}
	return nil
}

// manages reports whether the control daemon that runs can be set up with other settings: gpushare started it, for the same MIG
// device. running: a daemon or servers of one that has ended run.
func (s *Supervisor) manages(ctx context.Context, set mps.Settings) (managed, running bool, err error) {
	unit, err := s.Units.ServiceState(ctx, mps.UnitName(set.Device()))
	if err != nil {
		return false, false, fmt.Errorf("cannot start MPS on %s: %w", set.Device(), err)
	}
	rec := s.layout(set.Device()).readRecord()
	return rec != nil && unit.Running && rec.Settings.MIG == set.MIG, unit.Running || len(unit.Leftovers) > 0, nil
}

// prepare creates the directories and writes the record.
func prepare(l layout, next record) error {
	return errors.Join(l.create(), l.writeRecord(next))
}

// validate refuses settings that the program would misread or ignore, and a program that is not there.
func (s *Supervisor) validate(set mps.Settings) error {
	if err := set.Check(); err != nil {
		return err
	}
	if !filepath.IsAbs(s.Control) {
		return fmt.Errorf("the path %q of the control program is not absolute", s.Control)
	}
	if info, err := os.Stat(s.Control); err != nil || info.Mode()&0o111 == 0 {
		return fmt.Errorf("no program at %s; install the driver's MPS package or set mps_control", s.Control)
	}
	return nil
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
			return fmt.Errorf("its control daemon %s", s.describeEnd(ctx, name, unit.Result))
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// setUp sets the defaults, and then lets tenants in.
func (s *Supervisor) setUp(ctx context.Context, l layout, set mps.Settings) error {
	c := client{program: s.Control, pipeDir: l.pipe()}
	if err := c.apply(ctx, set); err != nil {
		return err
	}
	return errors.Join(l.linkTenant(), l.keepFiles())
}
