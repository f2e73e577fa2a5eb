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
	Held             map[gpu.UUID]olderHeld      `json:"held,omitempty"`
	DrainedMPS       map[gpu.UUID]olderDrain     `json:"drained_mps,omitempty"`
	DrainedInstances []olderInstanceDrain        `json:"drained_instances,omitempty"`
	HeldBackMPS      []olderHeldBack             `json:"held_back_mps,omitempty"`
	Cordoned         map[gpu.UUID]olderCordon    `json:"cordoned,omitempty"`
	Unhealthy        map[gpu.UUID]olderUnhealthy `json:"unhealthy,omitempty"`
	Maintenance      *olderMaintenance           `json:"maintenance,omitempty"`
}

type olderHeld struct {
	Generation uint64    `json:"generation"`
	Reason     string    `json:"reason"`
	Since      time.Time `json:"since"`
	Boot       string    `json:"boot,omitempty"`
}

type olderUnhealthy struct {
	HealthRecord
	Since time.Time `json:"since,omitzero"`
	Cause string    `json:"cause,omitempty"`
}

type olderMaintenance struct {
	olderCordon
	MaintenanceRecord
}

type olderDrain struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

type olderInstanceDrain struct {
	GPU      gpu.UUID      `json:"gpu"`
	Instance gpu.Placement `json:"instance"`
	olderDrain
}

type olderHeldBack struct {
	GPU      gpu.UUID      `json:"gpu"`
	Instance gpu.Placement `json:"instance,omitzero"`
	Tenant   string        `json:"tenant"`
	Since    time.Time     `json:"since"`
	Faults   int           `json:"faults"`
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
		case ClosureMaintenance:
			o.Maintenance = &olderMaintenance{olderCordon{c.By, c.Since, c.Reason}, value(c.Maintenance)}
		case ClosureHeld:
			held := value(c.Held)
			set(&o.Held, c.GPU, olderHeld{held.Generation, c.Reason, c.Since, held.Boot})
		case ClosureUnhealthy:
			set(&o.Unhealthy, c.GPU, olderUnhealthy{value(c.Health), c.Since, c.Reason})
		case ClosureCordoned:
			set(&o.Cordoned, c.GPU, olderCordon{c.By, c.Since, c.Reason})
		case ClosureDrained:
			drain := olderDrain{c.By, c.Since}
			if c.Instance.Size > 0 {
				o.DrainedInstances = append(o.DrainedInstances, olderInstanceDrain{c.GPU, c.Instance, drain})
			} else {
				set(&o.DrainedMPS, c.GPU, drain)
			}
		case ClosureHeldBack:
			o.HeldBackMPS = append(o.HeldBackMPS, olderHeldBack{c.GPU, c.Instance, c.Tenant, c.Since, c.Faults})
		}
	}
	return o
}

// closures are those of an older version, always in the same order.
func (o *older) closures() (list []Closure) {
	if m := o.Maintenance; m != nil {
		list = append(list, Closure{
			Kind:        ClosureMaintenance,
			By:          m.By,
			Since:       m.Since,
			Reason:      m.Reason,
			Maintenance: &m.MaintenanceRecord,
		})
	}
	for id, h := range sorted(o.Held) {
		list = append(list, Closure{
			Where:  Where{GPU: id},
			Kind:   ClosureHeld,
			Since:  h.Since,
			Reason: h.Reason,
			Held:   &HeldRecord{h.Generation, h.Boot},
		})
	}
	for id, u := range sorted(o.Unhealthy) {
		list = append(list, Closure{
			Where:  Where{GPU: id},
			Kind:   ClosureUnhealthy,
			Since:  u.Since,
			Reason: u.Cause,
			Health: &u.HealthRecord,
		})
	}
	for id, k := range sorted(o.Cordoned) {
		list = append(list, Closure{Where: Where{GPU: id}, Kind: ClosureCordoned, By: k.By, Since: k.Since, Reason: k.Reason})
	}
	for id, d := range sorted(o.DrainedMPS) {
		list = append(list, Closure{Where: Where{GPU: id}, Kind: ClosureDrained, By: d.By, Since: d.Since})
	}
	for i := range o.DrainedInstances {
		d := &o.DrainedInstances[i]
		list = append(list, Closure{Where: Where{GPU: d.GPU, Instance: d.Instance}, Kind: ClosureDrained, By: d.By, Since: d.Since})
	}
	for i := range o.HeldBackMPS {
		h := &o.HeldBackMPS[i]
		at := Where{GPU: h.GPU, Instance: h.Instance, Tenant: h.Tenant}
		list = append(list, Closure{Where: at, Kind: ClosureHeldBack, Since: h.Since, Faults: h.Faults})
	}
	return list
}

// value is what a record of a closure has; the zero value without one.
func value[V any](p *V) (v V) {
	if p != nil {
		v = *p
	}
	return v
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
