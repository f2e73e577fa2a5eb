package enforce

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// errStarting is why a lease gets no signal: where its processes are is known when it runs. The quota decides again.
var errStarting = errors.New("it is being started")

// signal sends the signal of an action, unless another one is being sent. The result arrives in the loop.
func (s *sampler) signal(a quota.MemoryAction) {
	if s.sending {
		return // The quota decides again.
	}
	s.sending = true
	attempt := s.attempt
	s.en.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.en.tasks.Context(), signalTimeout) // The loop may end when the lease does.
		defer cancel()
		r := signalSent{kind: a.Kind, lease: a.Lease}
		l, ok := s.en.Table.Get(a.Lease) // As it is now: that of the sample may be from before its cgroup was made.
		switch still, err := s.en.stillOver(ctx, s.id, a); {
		case err != nil || !still && !endsJob(a) || !ok:
			r.err = err
		case l.State != lease.Running && l.State != lease.Ending:
			r.err = errStarting
		case a.Kind == quota.MemoryKill:
			r.attempt, r.err = kill(ctx, attempt, l.ID)
		default:
			r.attempt, r.err = s.en.terminate(ctx, s, a, &l)
		}
		s.sent <- r
	})
}

// endsJob reports whether a signal is sent although the rest of the lease uses less by now: the job is ended.
func endsJob(a quota.MemoryAction) bool { return a.Job && a.Kind == quota.MemoryKill }

// signalTimeout limits the sending of one signal, with the measurement before and the wait for the exit after SIGKILL.
const signalTimeout = 5 * time.Second

// stopAttempt is one stop of a lease: SIGKILL belongs to the SIGTERM of the same attempt.
type stopAttempt struct {
	lease      string
	escalation *stop.Escalation
	processes  *stop.Processes // nil: the whole lease is stopped
}

// signalSent is the result of one signal.
type signalSent struct {
	kind    quota.MemoryActionKind
	lease   string
	attempt *stopAttempt // nil: no signal was sent
	err     error
}

// terminate sends SIGTERM. nil: it was not sent.
func (en *Enforcer) terminate(ctx context.Context, s *sampler, a quota.MemoryAction, l *lease.Lease) (*stopAttempt, error) {
	if l.Engine != nil {
		return en.terminateJob(ctx, s, a, l)
	}
	if l.InPlace() {
		return en.terminateLargest(ctx, s, l)
	}
	if err := en.Table.Ending(l.ID, a.String()); err != nil {
		return nil, err
	}
	attempt := &stopAttempt{lease: l.ID, escalation: en.Stopper.EscalationOf(l)}
	if err := attempt.escalation.Terminate(ctx); err != nil {
		return nil, err
	}
	return attempt, nil
}

// terminateLargest sends SIGTERM to a process of a lease that is attached in place: the one that uses most memory. Such a
// lease is never frozen and never stopped as a whole.
func (en *Enforcer) terminateLargest(ctx context.Context, s *sampler, l *lease.Lease) (*stopAttempt, error) {
	largest, pid, err := en.Stopper.LargestProcess(ctx, l, s.id)
	if err != nil || largest == nil {
		return nil, err
	}
	attempt := &stopAttempt{lease: l.ID, processes: largest, escalation: &stop.Escalation{Target: largest, Notify: func(context.Context) {
		en.Table.Notice(l.ID, lease.Notice{
			Kind: "memory.victim",
			Text: fmt.Sprintf("pid %d (%s) gets SIGTERM: it uses the most GPU memory", pid, procfs.Name(pid)),
		})
	}}}
	if err := attempt.escalation.Terminate(ctx); err != nil {
		largest.Close()
		return nil, err
	}
	return attempt, nil
}

// kill sends SIGKILL to what got SIGTERM in this attempt.
func kill(ctx context.Context, attempt *stopAttempt, id string) (*stopAttempt, error) {
	if attempt == nil || attempt.lease != id {
		return nil, fmt.Errorf("cannot kill lease %s: %w", id, stop.ErrNotTerminated)
	}
	if err := attempt.escalation.Kill(ctx); err != nil {
		return nil, err
	}
	return attempt, nil
}

// noteSignal reports to the quota which signal was sent. A signal that was not sent is tried again.
func (s *sampler) noteSignal(r signalSent) {
	s.sending = false
	s.report(string(r.kind), r.lease, r.err)
	switch {
	case r.attempt == nil:
	case r.kind == quota.MemoryStop:
		s.forgetAttempt()
		s.attempt = r.attempt
		s.control.Escalation.Terminated(r.lease, s.now())
	default:
		s.control.Escalation.Killed(r.lease, s.now())
	}
}

func (s *sampler) forgetAttempt() {
	if s.attempt != nil && s.attempt.processes != nil {
		s.attempt.processes.Close()
	}
	s.attempt = nil
}

func (s *sampler) report(what, id string, err error) {
	if err != nil {
		s.en.Log.Error("cannot act on a lease that uses too much GPU memory", "do", what, "lease", id, "error", err)
	}
}
