package instances

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
)

// idleInstances are the instances on demand that no lease or request needs.
type idleInstances struct {
	mu    locks.Mutex[locks.Leaf] // guards times
	times map[idleKey]time.Time
}

// idleKey identifies one instance. An instance that was created again has another generation.
type idleKey struct {
	gpu        gpu.UUID
	placement  gpu.Placement
	generation uint64
}

// since returns the time since which no lease or request needs an instance.
func (x *idleInstances) since(k idleKey) (time.Time, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at, ok := x.times[k]
	return at, ok
}

// note records the idle instances. Those that were idle before keep their time.
func (x *idleInstances) note(unneeded []idleKey, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	next := map[idleKey]time.Time{}
	for _, k := range unneeded {
		next[k] = now
		if at, ok := x.times[k]; ok {
			next[k] = at
		}
	}
	x.times = next
}

// due returns the instances that were idle for their keep time, and the time until the next one is due.
func (x *idleInstances) due(keep func(gpu.UUID) time.Duration, now time.Time) (remove map[gpu.UUID][]gpu.Placement, next time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	remove, next = map[gpu.UUID][]gpu.Placement{}, interval
	for k, since := range x.times {
		if left := keep(k.gpu) - now.Sub(since); left > 0 {
			next = min(next, left)
		} else {
			remove[k.gpu] = append(remove[k.gpu], k.placement)
		}
	}
	return remove, next
}

// postpone starts the keep time of instances that could not be removed again, so that the removal is not retried at once.
func (x *idleInstances) postpone(list map[gpu.UUID][]gpu.Placement, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k := range x.times {
		if slices.Contains(list[k.gpu], k.placement) {
			x.times[k] = now
		}
	}
}
