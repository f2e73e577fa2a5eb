package closing

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/store"
)

// Closures are why places take no lease.
type Closures []store.Closure

// For are the closures that keep a lease from a place: those of the place, and those of what it is a part of. Instance and tenant
// are as in store.Where: without them only what closes all of the GPU is returned.
func (l Closures) For(at store.Where) Closures {
	return l.filter(func(c *store.Closure) bool { return covers(&c.Where, &at) })
}

// At are the closures of exactly this place.
func (l Closures) At(at store.Where) Closures {
	return l.filter(func(c *store.Closure) bool { return c.Where == at })
}

// Of are the closures of kinds.
func (l Closures) Of(kinds ...Kind) Closures {
	return l.filter(func(c *store.Closure) bool { return slices.Contains(kinds, Kind(c.Kind)) })
}

// Without leaves out the closures of kinds.
func (l Closures) Without(kinds ...Kind) Closures {
	return l.filter(func(c *store.Closure) bool { return !slices.Contains(kinds, Kind(c.Kind)) })
}

// Sorted are the closures in the order in which reasons are said.
func (l Closures) Sorted() Closures {
	out := slices.Clone(l)
	slices.SortStableFunc(out, func(a, b store.Closure) int {
		return slices.Index(order, Kind(a.Kind)) - slices.Index(order, Kind(b.Kind))
	})
	return out
}

// Now are the closures whose end has not come. Those that have ended stay in the list: a clock that was wrong for a moment opens
// nothing for longer.
func (l Closures) Now(now time.Time) Closures {
	return l.filter(func(c *store.Closure) bool { return c.Until.IsZero() || now.Before(c.Until) })
}

func (l Closures) filter(f func(*store.Closure) bool) (out Closures) {
	for i := range l {
		if f(&l[i]) {
			out = append(out, l[i])
		}
	}
	return out
}

// covers reports whether a closure of one place keeps leases from another one.
func covers(closed, at *store.Where) bool {
	switch {
	case closed.GPU == "":
	case closed.GPU != at.GPU:
		return false
	case closed.Instance.Size > 0 && closed.Instance != at.Instance, closed.Compute != "" && closed.Compute != at.Compute:
		return false
	}
	return closed.Tenant == "" || closed.Tenant == at.Tenant
}
