package leases

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/internal/terminal"
	"github.com/gpushare/gpushare/lease"
)

const (
	// NoticeQueue is how many notices may wait for delivery; further ones are only in status and events.
	NoticeQueue = 256
	// noticeTimeout bounds the search for a lease's processes. A terminal is never waited for.
	noticeTimeout = 2 * time.Second
	// deliveryTimeout bounds the wait for a notice that the user must see before the lease is stopped.
	deliveryTimeout = 500 * time.Millisecond
)

// QueuedNotice is a notice with a copy of its lease: the lease may have ended when the notice is delivered.
type QueuedNotice struct {
	lease lease.Lease
	text  string
	done  chan struct{} // if set there is no notice: it is closed when the notices before it are delivered
}

// Noticed is called with the table's lock held: it publishes and queues the notice, and does not block.
func (ls *Leases) Noticed(l lease.Lease, n lease.Notice) {
	if n.Kind != "" {
		ls.Events.Publish(l.Event(n.Kind, n.Text))
	}
	ls.revised()
	select {
	case ls.Notices <- QueuedNotice{lease: l, text: n.Text}:
	default:
		ls.Log.Warn("a notice is not written to its terminal: too many are waiting", "lease", l.ID, "notice", n.Text)
	}
}

// Note adds a line for the user of a lease, also of one that has ended: its end may have a cause that is read later.
func (ls *Leases) Note(id string, n lease.Notice) {
	if _, ok := ls.Table.Get(id); ok {
		ls.Table.Notice(id, n)
	} else if ls.Ended.note(id, n.Text) {
		ls.saveEnded()
	}
}

// noticeLoop writes notices to the terminals of their leases, in order.
func (ls *Leases) noticeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-ls.Notices:
			if n.done != nil {
				close(n.done)
				continue
			}
			ls.deliver(ctx, n)
		}
	}
}

// awaitDelivery waits shortly until the queued notices are delivered: the user must see the reason before the lease is
// stopped.
func (ls *Leases) awaitDelivery(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deliveryTimeout)
	defer cancel()
	done := make(chan struct{})
	select {
	case ls.Notices <- QueuedNotice{done: done}:
	default:
		return // Too many are waiting: the stop is not delayed.
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (ls *Leases) deliver(ctx context.Context, n QueuedNotice) {
	if n.lease.Origin == lease.OriginDetached {
		// It has no terminal: its user reads its output.
		if err := ls.Detached.Outputs.Note(&n.lease, noticeLine(&n.lease, n.text)); err != nil {
			ls.Log.Debug("cannot write a notice to the output of its lease", "lease", n.lease.ID, "error", err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	members, err := ls.Attribution.PortOf(&n.lease).Members(ctx, n.lease.ID)
	if err != nil {
		return // It has ended: there is no terminal to write to.
	}
	pids := make([]int, len(members))
	for i, m := range members {
		pids[i] = m.PID
	}
	terminal.Notify(pids, n.lease.UID, noticeLine(&n.lease, n.text))
}

// noticeLine is the line for a terminal or an output.
func noticeLine(l *lease.Lease, text string) string { return "gpushare: lease " + l.ID + ": " + text }
