package mps

import (
	"context"
	"errors"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

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
		st.Settings, st.SingleUser = &rec.Settings, rec.SingleUser
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
	st.Servers, st.Clients = w.reading.servers, w.reading.clients
	if r, err := s.release(ctx); err == nil {
		st.Program, st.Version = r, r.Text()
	}
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
