package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpushare/gpushare/mps"
)

// reading is what a control daemon reports.
type reading struct {
	servers, clients []int
	fault            bool          // a server has a fatal fault
	noStatus         bool          // a server does not say whether it has one
	limits           time.Time     // when drift and pending were read
	drift            string        // how its limits differ from the settings, and a start step sets them
	pending          string        // how those of a server differ until its clients have ended
	defaults         *mps.Defaults // as they were read last
}

// read queries the servers and their clients of a control daemon that greets, and if limits is set what they limit.
func (s *Supervisor) read(ctx context.Context, l layout, w *gpuState, rec *record, limits bool) (r reading, err error) {
	q := listsQuery
	if limits {
		q = limitsQuery
	}
	err = s.query(w, l, q, func(c client) error {
		r, err = s.readBy(ctx, c, w, rec, limits)
		return err
	})
	return r, err
}

// readBy is read, with one run of the program and one more for each server.
func (s *Supervisor) readBy(ctx context.Context, c client, w *gpuState, rec *record, limits bool) (reading, error) {
	r := w.reading
	switch {
	case limits:
		r.drift, r.pending, r.limits = "", "", s.Now()
		o, err := c.overview(ctx)
		if err != nil {
			return reading{}, err
		}
		r.servers, r.defaults = o.Servers, &mps.Defaults{Threads: o.Threads, Memory: o.Memory}
		if rec != nil {
			r.drift = o.Drift(rec.Settings)
		}
	case w.read.IsZero() || !w.knowsServers():
		var err error
		if r.servers, err = c.servers(ctx); err != nil {
			return reading{}, err
		}
	}
	r.clients, r.fault, r.noStatus = nil, false, false
	for _, pid := range r.servers {
		server, err := c.server(ctx, pid, limits)
		if err != nil && ended(pid) {
			continue // It is listed until its control daemon has seen its end.
		}
		if err != nil {
			return reading{}, err
		}
		r.clients, r.fault = append(r.clients, server.Clients...), r.fault || server.Fault
		r.noStatus = r.noStatus || server.NoStatus
		if !limits || rec == nil || r.drift != "" {
			continue
		}
		switch drift := server.Drift(pid, rec.Settings); {
		case drift == "":
		case w.refused[pid] == server.Refusal(drift):
			r.pending = drift + ": it keeps them until its clients have ended"
		default:
			r.drift = drift
		}
	}
	slices.Sort(r.clients)
	return r, nil
}

func (c client) overview(ctx context.Context) (mps.Overview, error) {
	out, err := c.query(ctx, mps.OverviewQuery)
	if err != nil {
		return mps.Overview{}, err
	}
	return mps.ParseOverview(out)
}

func (c client) server(ctx context.Context, pid int, limits bool) (mps.ServerReading, error) {
	out, err := c.query(ctx, mps.ServerQuery(pid, limits))
	if err != nil {
		return mps.ServerReading{}, err
	}
	return mps.ParseServer(out)
}

// apply sets the defaults and reads them back, because setting reports no errors.
func (c client) apply(ctx context.Context, set mps.Settings) error {
	threads, memory, err := set.Values()
	if err != nil {
		return err
	}
	if _, err := c.query(
		ctx, "set_default_active_thread_percentage "+threads+"\nset_default_device_pinned_mem_limit 0 "+memory,
	); err != nil {
		return err
	}
	o, err := c.overview(ctx)
	if err != nil {
		return err
	}
	if drift := o.Drift(set); drift != "" {
		return errors.New(drift + " after it was set")
	}
	return nil
}
