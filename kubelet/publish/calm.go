package publish

import (
	"maps"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// Calm is for how long a device is in nothing's way before it is offered again. What is in the way is withdrawn at once, so that a user of
// the node who starts short leases makes two writes to the API server, however many the leases are.
const Calm = 10 * time.Second

// Memory is what was in the way lately. Its zero value is that of a program that has just started. One goroutine uses it.
type Memory struct {
	withheld map[string]time.Time // by device: until when it is not offered
	counters map[counterOf]low
}

type counterOf struct{ set, name string }

// low is the least value of a counter lately.
type low struct {
	value int64
	until time.Time
}

// withhold withholds the offers that are not calm yet, and returns for how long at least; 0: there are none.
func (m *Memory) withhold(offers []Offer, now time.Time) (wait time.Duration) {
	maps.DeleteFunc(m.withheld, func(_ string, until time.Time) bool { return !until.After(now) })
	for i := range offers {
		o := &offers[i]
		until, recent := m.withheld[o.Name]
		switch {
		case o.Withheld != "":
			if m.withheld == nil {
				m.withheld = map[string]time.Time{}
			}
			m.withheld[o.Name] = now.Add(Calm)
		case recent:
			o.Withheld = "it was in use a moment ago"
			wait = sooner(wait, until.Sub(now))
		}
	}
	return wait
}

// lower gives each counter its least value of the time of calm, and returns for how long at least; 0: they have their own values.
func (m *Memory) lower(sets []resourceapi.CounterSet, now time.Time) (wait time.Duration) {
	maps.DeleteFunc(m.counters, func(_ counterOf, l low) bool { return !l.until.After(now) })
	if m.counters == nil {
		m.counters = map[counterOf]low{}
	}
	for i := range sets {
		for name, c := range sets[i].Counters {
			of, value := counterOf{sets[i].Name, name}, c.Value.Value()
			if l, ok := m.counters[of]; ok && l.value < value {
				c.Value.Set(l.value)
				sets[i].Counters[name] = c
				wait = sooner(wait, l.until.Sub(now))
				continue
			}
			m.counters[of] = low{value, now.Add(Calm)}
		}
	}
	return wait
}

// sooner is the shorter one of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
