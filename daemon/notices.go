package daemon

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/internal/terminal"
	"github.com/gpushare/gpushare/lease"
)

const (
	// noticeQueue is how many notices may wait for their terminals; more are left to status and events.
	noticeQueue = 256
	// noticeTimeout bounds the finding of a lease's processes. Terminals themselves are never waited for.
	noticeTimeout = 2 * time.Second
)

// told is a notice with its lease as it was then: by the time that it is delivered the lease may be gone from the table.
type told struct {
	lease lease.Lease
	text  string
}

// noticed is called with the table's lock held: it publishes and queues, and does not wait.
func (d *Daemon) noticed(l lease.Lease, n lease.Notice) {
	if n.Kind != "" {
		d.leaseEvent(&l, n.Kind, n.Text)
	}
	d.page.touch()
	select {
	case d.notices <- told{l, n.Text}:
	default:
		d.log.Warn("a notice does not reach its terminal: too many wait", "lease", l.ID, "notice", n.Text)
	}
}

// noticeLoop puts notices on the terminals of the leases that they are for, in order.
func (d *Daemon) noticeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-d.notices:
			d.deliver(ctx, n)
		}
	}
}

func (d *Daemon) deliver(ctx context.Context, n told) {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	members, err := d.portOf(&n.lease).Members(ctx, n.lease.ID)
	if err != nil {
		return // It is gone, and with it whoever would have read.
	}
	pids := make([]int, len(members))
	for i, m := range members {
		pids[i] = m.PID
	}
	terminal.Tell(pids, n.lease.UID, noticeLine(&n.lease, n.text))
}

// noticeLine is a notice for somebody who sees nothing else of us.
func noticeLine(l *lease.Lease, text string) string { return "gpushare: lease " + l.ID + ": " + text }
