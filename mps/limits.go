package mps

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// The limits of a control daemon are its defaults, which a server takes over when it starts, and those of each server, which its
// next clients get. A client may ask for less. Clients that run keep what they got.

// values are the limits as the program reads them. The memory limit 0 removes one in every version.
func (s Settings) values() (threads, memory string, err error) {
	threads, memory = percentText(s.percentage()), "0"
	if s.Memory > 0 {
		memory, err = FormatMemory(s.Memory, 0)
	}
	return threads, memory, err
}

// percentage is the default thread percentage, 100 without a limit.
func (s Settings) percentage() float64 {
	if s.Threads == 0 {
		return 100
	}
	return s.Threads
}

// maxRounding is by how much a percentage that reads back may differ: the program prints one decimal.
const maxRounding = 0.06

// maxServerRounding is the same for a server, which may round down to what the GPU can divide.
const maxServerRounding = 1

// drift describes how the active defaults differ from the settings; empty: they do not.
func (o overview) drift(set Settings) string {
	switch {
	case math.Abs(o.threads-set.percentage()) > maxRounding:
		return fmt.Sprintf("its default thread percentage is %s, it should be %s", percentText(o.threads), percentText(set.percentage()))
	case o.memory != readBack(set.Memory):
		return fmt.Sprintf("its default memory limit reads back as %q, it should be %q", o.memory, readBack(set.Memory))
	}
	return ""
}

// drift describes how the limits of a server differ from the settings; empty: they do not, or it did not report them.
func (r serverReading) drift(pid int, set Settings) string {
	switch {
	case !r.limited:
	case math.Abs(r.threads-set.percentage()) > maxServerRounding:
		return fmt.Sprintf(
			"the thread percentage of server %d is %s, it should be %s", pid, percentText(r.threads), percentText(set.percentage()),
		)
	case r.memory != readBack(set.Memory):
		return fmt.Sprintf("the memory limit of server %d reads back as %q, it should be %q", pid, r.memory, readBack(set.Memory))
	}
	return ""
}

// refusal identifies a difference that remains after the limits of a server were set. It is tried again when the server has lost
// its last client.
func (r serverReading) refusal(drift string) string {
	return fmt.Sprintf("%s, idle: %t", drift, len(r.clients) == 0)
}

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
func (s *Supervisor) setServers(ctx context.Context, c control, w *gpuState, set Settings) error {
	threads, memory, err := set.values()
	if err != nil {
		return err
	}
	o, err := c.overview(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(w.refused, func(pid int, _ string) bool { return !slices.Contains(o.servers, pid) })
	for _, pid := range o.servers {
		if _, err := c.query(
			ctx, fmt.Sprintf("set_active_thread_percentage %d %s\nset_device_pinned_mem_limit %d 0 %s", pid, threads, pid, memory),
		); err != nil {
			return err
		}
		r, err := c.server(ctx, pid, true)
		if err != nil {
			return err
		}
		drift := r.drift(pid, set)
		if drift == "" {
			delete(w.refused, pid)
			continue
		}
		if len(r.clients) == 0 {
			if _, err := c.query(ctx, fmt.Sprintf("shutdown_server %d", pid)); err != nil {
				return err
			}
		}
		if w.refused == nil {
			w.refused = map[int]string{}
		}
		w.refused[pid] = r.refusal(drift)
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
