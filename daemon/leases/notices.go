package leases

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/internal/terminal"
	"github.com/gpushare/gpushare/lease"
)

const (
	// noticeQueue is how many notices may wait for their terminals; more are left to status and events.
	NoticeQueue = 256
	// noticeTimeout bounds the finding of a lease's processes. Terminals themselves are never waited for.
	noticeTimeout = 2 * time.Second
	// deliveryTimeout bounds the wait for a notice that must be seen before something happens.
	deliveryTimeout = 500 * time.Millisecond
)

// QueuedNotice is a notice with its lease as it was then: by the time that it is delivered the lease may be gone from the table.
type QueuedNotice struct {
	lease lease.Lease
	text  string
	done  chan struct{} // instead of a notice: closed when those before it are delivered
}

// Noticed is called with the table's lock held: it publishes and queues, and does not wait.
func (ls *Leases) Noticed(l lease.Lease, n lease.Notice) {
	if n.Kind != "" {
		ls.Events.Publish(l.Event(n.Kind, n.Text))
	}
	ls.Touch()
	select {
	case ls.Notices <- QueuedNotice{lease: l, text: n.Text}:
	default:
		ls.Log.Warn("a notice does not reach its terminal: too many wait", "lease", l.ID, "notice", n.Text)
	}
}

// noticeLoop puts notices on the terminals of the leases that they are for, in order.
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

// awaitDelivery waits a moment until the notices so far are delivered: who is told why he is stopped must hear it before.
func (ls *Leases) awaitDelivery(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deliveryTimeout)
	defer cancel()
	done := make(chan struct{})
	select {
	case ls.Notices <- QueuedNotice{done: done}:
	default:
		return // Too many wait: nobody is held up for that.
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (ls *Leases) deliver(ctx context.Context, n QueuedNotice) {
	if n.lease.Origin == lease.OriginDetached {
		// It has no terminal: what it prints is what its user reads.
		if err := ls.Detached.Outputs.Note(&n.lease, noticeLine(&n.lease, n.text)); err != nil {
			ls.Log.Debug("a notice does not reach the output of its lease", "lease", n.lease.ID, "error", err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	members, err := ls.Attribution.PortOf(&n.lease).Members(ctx, n.lease.ID)
	if err != nil {
		return // It is gone, and with it whoever would have read.
	}
	pids := make([]int, len(members))
	for i, m := range members {
		pids[i] = m.PID
	}
	terminal.Notify(pids, n.lease.UID, noticeLine(&n.lease, n.text))
}

// noticeLine is a notice for somebody who sees nothing else of us.
func noticeLine(l *lease.Lease, text string) string { return "gpushare: lease " + l.ID + ": " + text }
