package stop

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/internal/locks"
)

// LeaseChanges wakes goroutines that wait for a change of any lease.
type LeaseChanges struct {
	mu   locks.Mutex[locks.Leaf] // guards wake
	wake chan struct{}
}

// Next returns a channel that is closed at the next change of a lease.
func (x *LeaseChanges) Next() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake == nil {
		x.wake = make(chan struct{})
	}
	return x.wake
}

// Report closes the channel. It calls nothing.
func (x *LeaseChanges) Report() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake != nil {
		close(x.wake)
		x.wake = nil
	}
}

// AwaitEnded waits until the lease is not in the table any more: another goroutine, which watches the lease, may be
// removing its isolation.
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
			return fmt.Errorf("cannot end lease %s: its isolation is still active: %w", id, ctx.Err())
		}
	}
}
