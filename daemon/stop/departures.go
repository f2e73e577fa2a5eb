package stop

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/internal/locks"
)

// Departures tells those who wait that some lease is gone.
type Departures struct {
	mu   locks.Mutex[locks.Leaf] // guards wake
	wake chan struct{}
}

// Next gives a channel that is closed when the next lease is gone.
func (x *Departures) Next() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake == nil {
		x.wake = make(chan struct{})
	}
	return x.wake
}

// Tell wakes everybody who waits. It calls nobody.
func (x *Departures) Tell() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake != nil {
		close(x.wake)
		x.wake = nil
	}
}

// AwaitGone waits until the table knows the lease no more: whoever watches it may be the one who takes its walls down.
func (s *Stopper) AwaitGone(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, WallTimeout)
	defer cancel()
	for {
		next := s.Departures.Next()
		if _, ok := s.Table.Get(id); !ok {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("cannot end lease %s: its walls still stand: %w", id, ctx.Err())
		}
	}
}
