package claims

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/internal/locks"
)

// claimLocks let one change of a claim at a time through: the kubelet asks for one, and the end of a lease is another.
type claimLocks struct {
	mu   locks.Mutex[locks.Leaf] // guards what follows
	held map[types.UID]chan struct{}
}

// lock waits until no other change of the claim runs. unlock must be called.
func (c *claimLocks) lock(ctx context.Context, claim types.UID) (unlock func(), err error) {
	for {
		other, unlock := c.tryLock(claim)
		if unlock != nil {
			return unlock, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("another change of it has not ended: %w", ctx.Err())
		}
	}
}

// tryLock is lock without the wait: other is closed when the change that runs has ended.
func (c *claimLocks) tryLock(claim types.UID) (other <-chan struct{}, unlock func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, busy := c.held[claim]; busy {
		return other, nil
	}
	if c.held == nil {
		c.held = map[types.UID]chan struct{}{}
	}
	mine := make(chan struct{})
	c.held[claim] = mine
	return nil, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.held, claim)
		close(mine)
	}
}
