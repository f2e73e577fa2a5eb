package control

import (
	"context"
	"errors"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// observation is one observation of a control daemon whose unit runs. It completes st.
type observation struct {
	s   *Supervisor
	w   *gpuState
	l   layout
	rec *record // nil: gpushare does not manage it
	st  *mps.State
	now time.Time
}

func (o *observation) run(ctx context.Context) {
	o.follow()
	o.w.restarts.forgetOld(o.now)
	o.st.Phase = mps.Running
	if lost := o.l.lostFile(); o.rec != nil && lost != "" {
		o.st.Drift, o.st.Reason = true, lost+" was removed from the directory of its sockets"
		o.list()
		return
	}
	if err := o.s.greet(ctx, o.l, o.w, o.rec); err != nil {
		o.missed(err)
		o.list()
		return
	}
	o.w.missedGreetings = 0
	if err := o.readWhatIsDue(ctx); err != nil {
		o.st.Reason = err.Error()
		return
	}
	o.st.LogSilent = o.s.checkLog(ctx, o.st.Device(), &o.w.log, o.now)
	o.list()
	o.st.Defaults, o.st.Pending = o.w.reading.defaults, o.w.reading.pending
	if r, err := o.s.release(ctx); err == nil {
		o.st.Program, o.st.Version = r, r.Text()
	}
	o.explain()
}

// follow notes which control daemon runs. Of another one than before nothing is known.
func (o *observation) follow() {
	if o.w.pid != o.st.PID {
		o.w.pid, o.w.missedGreetings, o.w.read = o.st.PID, 0, time.Time{}
		o.w.log, o.w.faults = logCheck{}, faults{last: o.w.faults.last, xid: o.w.faults.xid, xidAt: o.w.faults.xidAt}
		o.w.witness = witness{}
		o.w.begin, _ = procfs.Start(o.w.pid) // 0 if it has ended: the next observation shows it.
		o.s.watch.follow(o.st.Device(), o.w.pid, o.w.begin)
	}
	o.st.Start = o.w.begin
}

// list lists the servers and clients of the last reading. It may be old: a client that has ended must not make a step disruptive.
func (o *observation) list() {
	o.st.Servers, o.st.Clients = living(o.w.reading.servers), living(o.w.reading.clients)
}

// missed records that a greeting was missed.
func (o *observation) missed(err error) {
	o.w.missedGreetings++
	o.st.MissedGreetings, o.st.Reason = o.w.missedGreetings, err.Error()
	switch {
	case o.w.missedGreetings >= maxMissedGreetings:
		o.st.Phase = mps.Unresponsive
		return
	case o.w.read.IsZero() && errors.Is(err, ErrNoDaemon):
		o.st.Phase = mps.Starting
	}
	o.s.watch.checkAt(o.st.Device(), o.now.Add(retryGreeting))
}

// readWhatIsDue reads servers, clients and limits where that is due, and what they say of a fault.
func (o *observation) readWhatIsDue(ctx context.Context) error {
	suspected, again := o.w.suspected(o.now)
	due := suspected || o.w.reread.Swap(false) || o.w.faultDue(o.now) || o.w.allEnded() || o.w.readingDue(o.now)
	if limits := o.w.limitsDue(o.rec, due, o.now); due || limits {
		r, err := o.s.read(ctx, o.l, o.w, o.rec, limits)
		if err != nil {
			return err
		}
		o.s.noteFault(ctx, o.st.Device(), &o.w.faults, &r, o.w.reading.clients, suspected, o.now)
		o.w.reading, o.w.read = r, o.now
	}
	o.st.Fault = o.w.faults.of(&o.w.reading, o.now)
	if o.w.reading.fault && !o.st.Fault.Stuck {
		again = o.now.Add(retryGreeting) // It serves again as soon as its last client has ended.
	}
	if !again.IsZero() {
		o.s.watch.checkAt(o.st.Device(), again)
	}
	return nil
}

// explain says why clients cannot join, or not as desired.
func (o *observation) explain() {
	switch {
	case o.rec != nil && !o.l.tenantLinked():
		o.st.Drift, o.st.Reason = true, "the tenants' socket is that of a previous control daemon"
	case o.w.reading.drift != "":
		o.st.Drift, o.st.Reason = true, o.w.reading.drift
	case o.w.reading.fault:
		o.st.Reason = o.st.Fault.Reason()
		if o.st.Fault.Stuck {
			o.st.Phase = mps.Unresponsive
		}
	}
}
