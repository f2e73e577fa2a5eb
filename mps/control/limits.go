package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// readingDue reports whether servers and clients are to be read: at intervals, and when a server was started or has ended.
func (w *gpuState) readingDue(now time.Time) bool {
	return w.read.IsZero() || now.Sub(w.read) >= readInterval || !w.knowsServers()
}

// knowsServers reports whether the servers are those of the last reading.
func (w *gpuState) knowsServers() bool {
	return slices.Equal(children(w.pid), slices.Sorted(slices.Values(w.reading.servers)))
}

// setServers sets the limits of the next clients of the servers that run, and reads them back. A server may refuse a memory limit
// while it has clients; one that has none is then ended, and the next one starts with the defaults.
func (s *Supervisor) setServers(ctx context.Context, c client, w *gpuState, set mps.Settings) error {
	threads, memory, err := set.Values()
	if err != nil {
		return err
	}
	o, err := c.overview(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(w.refused, func(pid int, _ string) bool { return !slices.Contains(o.Servers, pid) })
	for _, pid := range o.Servers {
		if _, err := c.query(
			ctx, fmt.Sprintf("set_active_thread_percentage %d %s\nset_device_pinned_mem_limit %d 0 %s", pid, threads, pid, memory),
		); err != nil {
			return err
		}
		r, err := c.server(ctx, pid, true)
		if err != nil && ended(pid) {
			continue // The next server has the defaults.
		}
		if err != nil {
			return err
		}
		drift := r.Drift(pid, set)
		if drift == "" {
			delete(w.refused, pid)
			continue
		}
		if len(r.Clients) == 0 {
			if _, err := c.query(ctx, fmt.Sprintf("shutdown_server %d", pid)); err != nil {
				return err
			}
		}
		if w.refused == nil {
			w.refused = map[int]string{}
		}
		w.refused[pid] = r.Refusal(drift)
	}
	return nil
}

// limitsDue reports whether the limits are to be read: where any tenant may change them, when one may have been connected; when a
// server has changed, when one that refused limits may have lost its last client, and else seldom.
func (w *gpuState) limitsDue(rec *record, readingDue bool, now time.Time) bool {
	switch {
	case rec == nil:
		return w.read.IsZero()
	case w.witness.others && (rec.AnyoneSets || rec.AnyoneSetsServers && (readingDue || len(w.reading.servers) > 0)):
		return true
	}
	return w.read.IsZero() || now.Sub(w.reading.limits) >= limitsInterval || readingDue && w.reading.pending != ""
}

// children lists the child processes of a control daemon, ascending: its servers, without a question that it would write to its log.
func children(pid int) []int {
	out, _ := procfs.Children(pid) // It has ended.
	return out
}
