package engines

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/internal/locks"
)

// keys lets one request of a key at a time through: a second one finds the lease of the first.
type keys struct {
	mu   locks.Mutex[locks.Leaf] // guards what follows
	held map[string]chan struct{}
}

// lock waits until no other request with the key runs. unlock must be called.
func (k *keys) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		other, busy := k.held[key]
		if !busy {
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			k.held[key] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				defer k.mu.Unlock()
				delete(k.held, key)
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("cannot wait for the other request with key %s: %w", key, ctx.Err())
		}
	}
}
