package daemon

import (
	"context"
	"fmt"
	"sync"
)

// departures tells those who wait that some lease is gone.
type departures struct {
	mu   sync.Mutex // guards wake
	wake chan struct{}
}

// next gives a channel that is closed when the next lease is gone.
func (x *departures) next() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake == nil {
		x.wake = make(chan struct{})
	}
	return x.wake
}

func (x *departures) tell() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake != nil {
		close(x.wake)
		x.wake = nil
	}
}

// awaitGone waits until the table knows the lease no more: whoever watches it may be the one who takes its walls down.
func (d *Stopper) awaitGone(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, wallTimeout)
	defer cancel()
	for {
		next := d.departures.next()
		if _, ok := d.table.Get(id); !ok {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("cannot end lease %s: its walls still stand: %w", id, ctx.Err())
		}
	}
}
