package stop

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/internal/locks"
)

// LeaseChanges tells those who wait that some lease is gone.
type LeaseChanges struct {
	mu   locks.Mutex[locks.Leaf] // guards wake
	wake chan struct{}
}

// Next gives a channel that is closed when the next lease is gone.
func (x *LeaseChanges) Next() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake == nil {
		x.wake = make(chan struct{})
	}
	return x.wake
}

// Report wakes everybody who waits. It calls nobody.
func (x *LeaseChanges) Report() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake != nil {
		close(x.wake)
		x.wake = nil
	}
}

// AwaitEnded waits until the table knows the lease no more: whoever watches it may be the one who takes its walls down.
func (s *Stopper) AwaitEnded(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, IsolationTimeout)
	defer cancel()
	for {
		next := s.LeaseChanges.Next()
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
