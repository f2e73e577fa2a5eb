package store

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// older is how versions before the list of closures keep them. It is written next to the list: such a version does not know the
// list, and must not open what is closed. It is read only where there is no list, because such a version wrote the file.
type older struct {
	Cordoned map[gpu.UUID]olderCordon `json:"cordoned,omitempty"`
}

type olderCordon struct {
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// olderOf is what an older version reads of closures. It knows no end of them: those that end by themselves stay closed for it.
func olderOf(list []Closure) (o older) {
	for i := range list {
		switch c := &list[i]; c.Kind {
		case ClosureCordoned:
			set(&o.Cordoned, c.GPU, olderCordon{c.By, c.Since, c.Reason})
		}
	}
	return o
}

// closures are those of an older version, always in the same order.
func (o *older) closures() (list []Closure) {
	for id, k := range sorted(o.Cordoned) {
		list = append(list, Closure{Where: Where{GPU: id}, Kind: ClosureCordoned, By: k.By, Since: k.Since, Reason: k.Reason})
	}
	return list
}

func set[V any](m *map[gpu.UUID]V, id gpu.UUID, v V) {
	if *m == nil {
		*m = map[gpu.UUID]V{}
	}
	(*m)[id] = v
}

// sorted makes the order of a list not depend on that of a map.
func sorted[V any](m map[gpu.UUID]V) iter.Seq2[gpu.UUID, V] {
	return func(yield func(gpu.UUID, V) bool) {
		for _, id := range slices.Sorted(maps.Keys(m)) {
			if !yield(id, m[id]) {
				return
			}
		}
	}
}
