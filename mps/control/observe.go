package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// Observe observes the control daemon of one device; nil when there is none. It changes nothing on the node. During Start, Stop
// and Clients it returns the last observation, because it must not take as long as a change, and is to be called again.
func (s *Supervisor) Observe(ctx context.Context, id mps.Device) *mps.State {
	w := s.gpuState(id)
	if !w.mu.TryLock() {
		s.watch.checkAt(id, s.Now().Add(retryGreeting)) // What it was called for may be due, such as a suspicion.
		return w.last.Load()
	}
	defer w.mu.Unlock()
	return s.observeAndKeep(ctx, id, w)
}

// observeNow is Observe that waits for Start and Stop.
func (s *Supervisor) observeNow(ctx context.Context, id mps.Device) *mps.State {
	w := s.gpuState(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.observeAndKeep(ctx, id, w)
}

func (s *Supervisor) observeAndKeep(ctx context.Context, id mps.Device, w *gpuState) *mps.State {
	st := s.observeLocked(ctx, id, w)
	if st == nil || st.PID == 0 {
		s.watch.drop(id)
	}
	w.last.Store(st)
	return st
}

func (s *Supervisor) observeLocked(ctx context.Context, id mps.Device, w *gpuState) *mps.State {
	l := s.layout(id)
	rec := l.readRecord()
	if rec == nil && w.unitChecked && !w.foreign {
		return s.unstarted(id, w)
	}
	unit, err := s.Units.ServiceState(ctx, mps.UnitName(id))
	if rec == nil && err == nil {
		w.unitChecked, w.foreign = true, unit.Known
		if !unit.Known {
			return s.unstarted(id, w)
		}
	}
	st := &mps.State{
		GPU:       id.GPU,
		Instance:  id.Instance,
		Unit:      mps.UnitName(id),
		PID:       unit.PID,
		Leftovers: unit.Leftovers,
		Restarts:  w.restarts.count(),
	}
	if rec != nil {
		st.Settings, st.SingleUser, st.AnyoneSets = &rec.Settings, rec.SingleUser, rec.AnyoneSets || rec.AnyoneSetsServers
	}
	switch {
	case err != nil && rec == nil:
		return nil
	case err != nil:
		st.Phase, st.Reason = mps.Unresponsive, err.Error()
		return st
	case !unit.Running && rec == nil:
		st.Phase, st.Reason = mps.Stopped, unit.Result
		return st
	case !unit.Running:
		s.observeDown(ctx, st, w, unit)
		return st
	}
	now := s.Now()
	if w.pid != unit.PID {
		w.pid, w.missedGreetings, w.read = unit.PID, 0, time.Time{}
		w.log, w.faults = logCheck{}, faults{last: w.faults.last, xid: w.faults.xid, xidAt: w.faults.xidAt}
		w.witness = witness{}
		w.begin, _ = procfs.Start(unit.PID) // 0 if it has ended: the next observation shows it.
		s.watch.follow(id, unit.PID, w.begin)
	}
	st.Start = w.begin
	w.restarts.forgetOld(now)
	if lost := l.lostFile(); rec != nil && lost != "" {
		st.Phase, st.Drift, st.Reason = mps.Running, true, lost+" was removed from the directory of its sockets"
		st.Servers, st.Clients = living(w.reading.servers), living(w.reading.clients)
		return st
	}
	if err := s.greet(ctx, l, w, rec); err != nil {
		w.missedGreetings++
		st.Phase, st.MissedGreetings, st.Reason = mps.Running, w.missedGreetings, err.Error()
		st.Servers, st.Clients = living(w.reading.servers), living(w.reading.clients)
		switch {
		case w.read.IsZero() && errors.Is(err, ErrNoDaemon) && w.missedGreetings < maxMissedGreetings:
			st.Phase = mps.Starting
		case w.missedGreetings >= maxMissedGreetings:
			st.Phase = mps.Unresponsive
		}
		if w.missedGreetings < maxMissedGreetings {
			s.watch.checkAt(id, now.Add(retryGreeting))
		}
		return st
	}
	w.missedGreetings = 0
	st.Phase = mps.Running
	suspected, again := w.suspected(now)
	due := suspected || w.reread.Swap(false) || w.faultDue(now) || w.allEnded() || w.readingDue(now)
	if limits := w.limitsDue(rec, due, now); due || limits {
		r, err := s.read(ctx, l, w, rec, limits)
		if err != nil {
			st.Reason = err.Error()
			return st
		}
		s.noteFault(ctx, id, &w.faults, &r, w.reading.clients, suspected, now)
		w.reading, w.read = r, now
	}
	st.Fault = w.faults.of(&w.reading, now)
	if w.reading.fault && !st.Fault.Stuck {
		again = now.Add(retryGreeting) // It serves again as soon as its last client has ended.
	}
	if !again.IsZero() {
		s.watch.checkAt(id, again)
	}
	st.LogSilent = s.checkLog(ctx, id, &w.log, now)
	// The reading may be old: a client that has ended must not make a step disruptive.
	st.Servers, st.Clients = living(w.reading.servers), living(w.reading.clients)
	st.Defaults, st.Pending = w.reading.defaults, w.reading.pending
	if r, err := s.release(ctx); err == nil {
		st.Program, st.Version = r, r.Text()
	}
	switch {
	case rec != nil && !l.tenantLinked():
		st.Drift, st.Reason = true, "the tenants' socket is that of a previous control daemon"
	case w.reading.drift != "":
		st.Drift, st.Reason = true, w.reading.drift
	case w.reading.fault:
		st.Reason = st.Fault.Reason()
		if st.Fault.Stuck {
			st.Phase = mps.Unresponsive
		}
	}
	return st
}

// observeDown completes the state of a daemon that is desired and whose unit does not run. An end since the last observation
// counts as a failure.
func (s *Supervisor) observeDown(ctx context.Context, st *mps.State, w *gpuState, unit mps.ServiceState) {
	ended := "its unit does not run"
	if unit.Result != "" {
		ended = "its unit ended: " + s.describeEnd(ctx, st.Unit, unit.Result)
	}
	if w.pid != 0 {
		w.pid = 0
		w.restarts.failed(s.Now(), ended)
	}
	s.setDown(st, w, ended)
}

// unstarted is the state of a device without a unit and a record: a start has failed, or only the former compute mode is left to
// restore; nil otherwise.
func (s *Supervisor) unstarted(id mps.Device, w *gpuState) *mps.State {
	st := &mps.State{GPU: id.GPU, Instance: id.Instance, Unit: mps.UnitName(id)}
	if w.restarts.failures == 0 {
		if id.IsInstance() {
			return nil
		}
		switch p, err := s.previous().Get(id.GPU); {
		case err != nil:
			st.Phase, st.Reason = mps.Stopped, err.Error()
		case p != nil:
			st.Phase, st.Reason = mps.Stopped, fmt.Sprintf(
				"its files are lost, and the compute mode %s from before it is not restored",
				p.Mode,
			)
		default:
			return nil
		}
		return st
	}
	s.setDown(st, w, "")
	return st
}

// setDown sets the phase and the time of the next start.
func (s *Supervisor) setDown(st *mps.State, w *gpuState, ended string) {
	st.Phase, st.Reason = w.restarts.phase(ended)
	st.Retry = w.restarts.next
	if st.Retry.After(s.Now()) {
		s.watch.checkAt(st.Device(), st.Retry)
	}
}

// living returns the processes of a former reading that still run.
func living(pids []int) []int {
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		p, err := procfs.Read(pid)
		return err != nil || p.Dead()
	})
}
