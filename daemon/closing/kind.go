package closing

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/store"
)

// Kind is why a place is closed. A closer changes only closures of its own kind: what another one closed stays closed.
type Kind string

// The kinds that are kept on disk.
const (
	Cordoned Kind = store.ClosureCordoned // an administrator closed a GPU
)

// Close closes a place in a state that is about to be written. A closure of this kind at the same place is replaced.
func (k Kind) Close(s *store.State, c store.Closure) {
	c.Kind = string(k)
	if old := k.At(s, c.Where); old != nil {
		*old = c
		return
	}
	s.Closures = append(s.Closures, c)
}

// Open removes the closure of this kind at a place, and reports whether there was one.
func (k Kind) Open(s *store.State, at store.Where) bool {
	return k.OpenIf(s, func(c *store.Closure) bool { return c.Where == at })
}

// OpenIf removes the closures of this kind for which f is true, and reports whether there was one.
func (k Kind) OpenIf(s *store.State, f func(*store.Closure) bool) bool {
	before := len(s.Closures)
	s.Closures = slices.DeleteFunc(s.Closures, func(c store.Closure) bool { return c.Kind == string(k) && f(&c) })
	return len(s.Closures) < before
}

// At is the closure of this kind at exactly this place; nil: there is none.
func (k Kind) At(s *store.State, at store.Where) *store.Closure {
	for i := range s.Closures {
		if c := &s.Closures[i]; c.Kind == string(k) && c.Where == at {
			return c
		}
	}
	return nil
}

// In are all closures of this kind.
func (k Kind) In(s *store.State) Closures { return Closures(s.Closures).Of(k) }

// OnGPU is the place of a whole GPU, for all tenants.
func OnGPU(id gpu.UUID) store.Where { return store.Where{GPU: id} }

// Stored are the kinds that are kept on disk. The others are found again.
var Stored = []Kind{Cordoned}
