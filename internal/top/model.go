package top

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
)

// View is which table the lower part of the screen has.
type View string

// The tables.
const (
	Leases    View = "lease"
	GPUs      View = "gpu"
	Tenants   View = "tenant"
	Users     View = "user"
	Processes View = "process"
)

// mostPast is how many readings of a GPU are kept: more than the widest screen shows.
const mostPast = 300

// Reading is what was read of the node at one time.
type Reading struct {
	Status *api.Status
	Idle   *api.Idle // nil: it could not be read
}

// Model is what is shown, and what the user chose. The zero value shows the leases.
type Model struct {
	View View
	Zone *time.Location // of times; nil: UTC

	last   *Reading
	failed string    // why there is no newer reading
	since  time.Time // when that began
	past   map[string]*past

	selection string // the id of the selected row
	filter    string
	sorting   map[View]int // the key of each table, from 0
	reversed  map[View]bool
	mode      mode
	pending   question // what the user has to confirm
	message   string   // the answer to the last action
	wrong     bool     // it is a refusal

	drawn     table // as last drawn: what keys move in
	screenful int   // by how many rows PgUp and PgDn move
}

// past are the last readings of one GPU, the newest last; a nil value is not known.
type past struct{ busy, memory []*float64 }

type mode int

const (
	watching mode = iota
	filtering
	confirming
	helping
)

// question is whether a lease is stopped.
type question struct{ lease, text string }

// Take adds a reading.
func (m *Model) Take(r Reading) {
	if m.past == nil {
		m.past = map[string]*past{}
	}
	m.last, m.failed = &r, ""
	for i := range r.Status.GPUs {
		g := &r.Status.GPUs[i]
		p := m.past[g.UUID]
		if p == nil {
			p = &past{}
			m.past[g.UUID] = p
		}
		p.busy = last(append(p.busy, busyOf(g)))
		p.memory = last(append(p.memory, memoryPart(g, &g.Memory)))
	}
}

func last(all []*float64) []*float64 { return all[max(0, len(all)-mostPast):] }

// Fail says why there is no newer reading.
func (m *Model) Fail(why string, at time.Time) {
	if m.failed == "" {
		m.since = at
	}
	m.failed = why
}

// HasRead reports whether anything was read.
func (m *Model) HasRead() bool { return m.last != nil }

// Stopped is the answer to a Stop; an empty refusal: it was stopped.
func (m *Model) Stopped(lease, refusal string) {
	m.message, m.wrong = lease+" is stopped", refusal != ""
	if m.wrong {
		m.message = refusal
	}
}

func (m *Model) zone() *time.Location {
	if m.Zone == nil {
		return time.UTC
	}
	return m.Zone
}

// answers reports whether a GPU can be read. Of one that cannot, what is not known is 0 or as before.
func answers(g *api.GPUStatus) bool {
	return !slices.Contains([]string{"lost", "stuck", "unreadable", "missing", "parked", "no-driver", "mismatch"}, g.State)
}

// busyOf is the part of the last period in which the GPU was busy; nil if it is not reported.
func busyOf(g *api.GPUStatus) *float64 {
	if g.Utilization == nil || !answers(g) {
		return nil
	}
	return new(float64(*g.Utilization) / 100)
}

// memoryPart is the part of the memory of a GPU or of its instance that is used; nil if it is not known.
func memoryPart(g *api.GPUStatus, m *api.GPUMemory) *float64 {
	if m.Total == 0 || !answers(g) {
		return nil
	}
	return new(float64(m.Used) / float64(m.Total))
}
