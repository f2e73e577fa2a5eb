package publish

import (
	"maps"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// Calm is for how long a device is in nothing's way before it is offered again, if it was offered again within Often before. What is in
// the way is withdrawn at once, and offered again at once after the first time: a user of the node who starts short leases makes two
// writes a minute to the API server, however many the leases are.
const (
	Calm  = 10 * time.Second
	Often = time.Minute
)

// Memory is what was in the way lately. Its zero value is that of a program that has just started. One goroutine uses it.
type Memory struct {
	devices  map[string]*rise
	counters map[counterOf]*rise
}

type counterOf struct{ set, name string }

// rise decides when more is offered: of a device one instead of none, of a counter a higher value.
type rise struct {
	value int64     // what is offered
	last  time.Time // when more was offered last
	low   time.Time // when there was no more than that last
	used  bool      // since the last call of forget
}

// offer is what is offered when there is so much, and how long it takes until it may be more; 0: it is all.
func (r *rise) offer(is int64, now time.Time) (wait time.Duration) {
	r.used = true
	if is <= r.value {
		r.value, r.low = is, now
		return 0
	}
	if calm := r.low.Add(Calm); now.Before(r.last.Add(Often)) && now.Before(calm) {
		return calm.Sub(now)
	}
	r.value, r.last = is, now
	return 0
}

// of is the one of that name; what is seen for the first time is offered as it is.
func of[K comparable](all *map[K]*rise, name K, is int64) *rise {
	if *all == nil {
		*all = map[K]*rise{}
	}
	r := (*all)[name]
	if r == nil {
		r = &rise{value: is}
		(*all)[name] = r
	}
	return r
}

// forget removes those that were not used since the last time: the device, or the set of counters, is not there any more.
func forget[K comparable](all map[K]*rise) {
	maps.DeleteFunc(all, func(_ K, r *rise) bool {
		unused := !r.used
		r.used = false
		return unused
	})
}

// withhold withholds the offers that are not calm yet, and returns for how long at least; 0: there are none.
func (m *Memory) withhold(offers []Offer, now time.Time) (wait time.Duration) {
	for i := range offers {
		o := &offers[i]
		is := int64(1)
		if o.Withheld != "" {
			is = 0
		}
		r := of(&m.devices, o.Name, is)
		wait = sooner(wait, r.offer(is, now))
		if r.value < is {
			o.Withheld = "it was in use a moment ago"
		}
	}
	forget(m.devices)
	return wait
}

// lower lowers the counters that are not calm yet, and returns for how long at least; 0: there are none.
func (m *Memory) lower(sets []resourceapi.CounterSet, now time.Time) (wait time.Duration) {
	for i := range sets {
		for name, c := range sets[i].Counters {
			is := c.Value.Value()
			r := of(&m.counters, counterOf{sets[i].Name, name}, is)
			wait = sooner(wait, r.offer(is, now))
			if r.value < is {
				c.Value.Set(r.value)
				sets[i].Counters[name] = c
			}
		}
	}
	forget(m.counters)
	return wait
}

// sooner is the shorter one of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
