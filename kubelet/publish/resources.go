package publish

import (
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/gpushare/api"
)

// named gives the device of an offer its name.
func (o *Offer) named() { o.device.Name = o.Name }

// Device is what is published of the offer.
func (o *Offer) Device() resourceapi.Device {
	d := o.device
	d.ConsumesCounters = nil
	for _, c := range o.counters {
		d.ConsumesCounters = append(
			d.ConsumesCounters, resourceapi.DeviceCounterConsumption{CounterSet: c.set, Counters: counterValues(c.uses)},
		)
	}
	return d
}

// Resources are the slices of the node's pool: first the sets of counters, which must not be in a slice with devices, and then the devices.
func Resources(n *Node, pool string) resourceslice.DriverResources {
	r, _ := (&Memory{}).Resources(n, pool, time.Time{})
	return r
}

// Resources are those of a node at a time, without what was in the way until lately. wait is how long it lasts at least until more of it is
// offered; 0: nothing waits.
func (m *Memory) Resources(n *Node, pool string, now time.Time) (r resourceslice.DriverResources, wait time.Duration) {
	offers := Offers(n)
	wait = m.withhold(offers, now)
	var devices []resourceapi.Device
	used := map[string]bool{}
	for i := range offers {
		if offers[i].Withheld != "" {
			continue
		}
		devices = append(devices, offers[i].Device())
		for _, c := range offers[i].counters {
			used[c.set] = true
		}
	}
	counters := n.counterSets(offers, used)
	wait = sooner(wait, m.lower(counters, now))
	before, sets := n.kept()
	devices = append(devices, before...)
	for _, s := range sets {
		if !slices.ContainsFunc(counters, func(c resourceapi.CounterSet) bool { return c.Name == s.Name }) {
			counters = append(counters, s)
		}
	}
	var out []resourceslice.Slice
	for sets := range slices.Chunk(counters, resourceapi.ResourceSliceMaxCounterSets) {
		out = append(out, resourceslice.Slice{SharedCounters: sets})
	}
	for part := range slices.Chunk(devices, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		out = append(out, resourceslice.Slice{Devices: part})
	}
	if out == nil {
		return Nothing(pool), wait
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: {Slices: out}}}, wait
}

// Nothing is a pool without devices: what was published is withdrawn.
func Nothing(pool string) resourceslice.DriverResources {
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: {Slices: []resourceslice.Slice{{}}}}}
}

// counterSets are the sets that devices use: one for each GPU with instances on demand, and one for each grant with a number of leases.
func (n *Node) counterSets(offers []Offer, used map[string]bool) []resourceapi.CounterSet {
	var out []resourceapi.CounterSet
	for i := range n.Status.GPUs {
		g := &n.Status.GPUs[i]
		j := slices.IndexFunc(n.MIG.GPUs, func(d api.MIGDevice) bool { return d.UUID == g.UUID })
		if name := n.name(g); j >= 0 && used[name] {
			out = append(out, resourceapi.CounterSet{Name: name, Counters: counterValues(n.left(g, &n.MIG.GPUs[j]))})
		}
	}
	limits := map[string]int64{}
	for i := range offers {
		if offers[i].Withheld == "" {
			maps.Copy(limits, offers[i].limits)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		out = append(out, resourceapi.CounterSet{Name: name, Counters: counterValues(map[string]int64{limitCounter: limits[name]})})
	}
	return out
}
