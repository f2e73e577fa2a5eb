package control

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// Observe observes the control daemon of one device; nil when there is none. It changes nothing on the node. During Start, Stop
// and Clients it returns the last observation, because it must not take as long as a change, and is to be called again.
func (s *Supervisor) Observe(ctx context.Context, id mps.Device) *mps.State {
	w := s.gpuState(id)
	if !w.mu.TryLock() {
		s.watch.checkAt(id, s.Now().Add(retryGreeting)) // What it was called for may be due, such as a suspicion.
		return withoutEnded(w.last.Load())
	}
	defer w.mu.Unlock()
	return s.observeAndKeep(ctx, id, w)
}

// withoutEnded is a former observation without the servers and clients that have ended since.
func withoutEnded(st *mps.State) *mps.State {
	if st == nil {
		return nil
	}
	servers, clients := living(st.Servers), living(st.Clients)
	if len(servers) == len(st.Servers) && len(clients) == len(st.Clients) {
		return st
	}
	kept := *st
	kept.Servers, kept.Clients = servers, clients
	return &kept
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
	switch {
	case rec == nil && err != nil:
		return nil
	case rec == nil:
		if w.unitChecked, w.foreign = true, unit.Known; !unit.Known {
			return s.unstarted(id, w)
		}
	}
	st := stateOf(id, w, unit, rec)
	switch {
	case err != nil:
		st.Phase, st.Reason = mps.Unresponsive, err.Error()
	case unit.Running:
		(&observation{s: s, w: w, l: l, rec: rec, st: st, now: s.Now()}).run(ctx)
	case rec == nil:
		st.Phase, st.Reason = mps.Stopped, unit.Result
	default:
		s.observeDown(ctx, st, w, unit)
	}
	return st
}

// stateOf is what is known of a control daemon without a question to it.
func stateOf(id mps.Device, w *gpuState, unit mps.ServiceState, rec *record) *mps.State {
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
	return slices.DeleteFunc(slices.Clone(pids), ended)
}

// ended reports whether a process has ended. One that cannot be read is no client and no server that anything could be asked of.
func ended(pid int) bool {
	p, err := procfs.Read(pid)
	return err != nil || p.Dead()
}
