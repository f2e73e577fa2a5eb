package claims

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/internal/locks"
)

// turns let one change of a claim at a time through: the kubelet asks for one, and the end of a lease is another.
type turns struct {
	mu    locks.Mutex[locks.Leaf] // guards what follows
	taken map[types.UID]chan struct{}
}

// take waits until no other change of the claim runs. end must be called.
func (t *turns) take(ctx context.Context, claim types.UID) (end func(), err error) {
	for {
		other, end := t.try(claim)
		if end != nil {
			return end, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("another change of it has not ended: %w", ctx.Err())
		}
	}
}

// try is take without the wait: other is closed when the change that runs has ended.
func (t *turns) try(claim types.UID) (other <-chan struct{}, end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if other, busy := t.taken[claim]; busy {
		return other, nil
	}
	if t.taken == nil {
		t.taken = map[types.UID]chan struct{}{}
	}
	mine := make(chan struct{})
	t.taken[claim] = mine
	return nil, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.taken, claim)
		close(mine)
	}
}
