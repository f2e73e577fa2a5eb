package publish_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/kubelet/publish"
	"github.com/gpushare/gpushare/test/golden"
)

// What is published of an empty node, for each generation of grids.
func TestPublished(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a30", "a100-80", "h100-80", "h200-141"} {
		t.Run(name, func(t *testing.T) {
			b, err := board.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			out, err := yaml.Marshal(publish.Resources(newWorld(t, b, 2).node(), pool).Pools[pool].Slices)
			if err != nil {
				t.Fatal(err)
			}
			golden.File(t, filepath.Join("testdata", name+".yaml"), string(out))
		})
	}
}

// devicesOf are the devices that are published, by name.
func devicesOf(n *publish.Node) map[string]resourceapi.Device {
	out := map[string]resourceapi.Device{}
	for _, s := range publish.Resources(n, pool).Pools[pool].Slices {
		for _, d := range s.Devices {
			out[d.Name] = d
		}
	}
	return out
}

func withheld(n *publish.Node, name string) string {
	offers := publish.Offers(n)
	if i := slices.IndexFunc(offers, func(o publish.Offer) bool { return o.Name == name }); i >= 0 {
		return offers[i].Withheld
	}
	return "there is no such device"
}

// What is not offered, and why; what has a taint, and which.
func TestWithheldAndTainted(t *testing.T) {
	t.Parallel()
	b, err := board.Find("a100-80")
	if err != nil {
		t.Fatal(err)
	}
	const first, whole, part = "gpu-carved-mig-3g-40gb-0", "gpu-whole", "gpu-shared-part"
	owned := api.Lease{ID: "local-alone-1", User: "alice", Tenant: others, GPUs: []string{"GPU-whole"}, State: api.LeaseRunning}
	for name, c := range map[string]struct {
		change func(n *publish.Node)
		device string
		why    string // it is not published
		taint  string // KEY:EFFECT
	}{
		"free":           {func(*publish.Node) {}, whole, "", ""},
		"a local lease":  {func(n *publish.Node) { n.Status.Leases = append(n.Status.Leases, owned) }, whole, "lease local-alone-1 of alice", ""},
		"another engine": {func(n *publish.Node) { n.Status.GPUs[2].Owner = "slurm" }, whole, "belongs to slurm", ""},
		"its own engine": {func(n *publish.Node) { n.Status.GPUs[2].Owner = "kubernetes" }, whole, "", ""},
		"observed":       {func(n *publish.Node) { n.Status.Node.Enforce = "observe" }, part, "only observes", ""},
		"a foreign instance": {func(n *publish.Node) {
			n.MIG.GPUs[0].Instances = []api.MIGInstance{{ProfileID: 9, Profile: "3g.40gb", Placement: api.MIGPlacement{Size: 4}, Foreign: true}}
		}, first, "not managed by gpushare", ""},
		"memory of other grants": {func(n *publish.Node) {
			n.Status.GPUs[1].Granted = []api.GrantedMemory{{Tenant: others, Grant: "x", Bytes: 60 << 30}}
		}, part, "other grants have 61440 MiB", ""},
		"cordoned": {func(n *publish.Node) {
			n.Status.GPUs[0].Closures = []api.Closure{{Kind: "cordoned", Reason: "fan is loud: ask bob"}}
		}, first, "", "gpushare.dev/cordoned:NoSchedule"},
		"another instance is closed": {func(n *publish.Node) {
			n.Status.GPUs[0].Closures = []api.Closure{{Kind: "drained", Instance: &api.MIGPlacement{Start: 4, Size: 4}}}
		}, first, "", ""},
		"an open change": {func(n *publish.Node) {
			n.Status.GPUs[0].Closures = []api.Closure{{Kind: "changing"}}
		}, first, "", ""},
		"lost": {func(n *publish.Node) { n.Status.GPUs[2].State = "lost" }, whole, "", "gpushare.dev/lost:NoExecute"},
		// What is known of its instances is of before it was lost: one that was created for a claim since then has no lease in it.
		"lost with an instance in use": {func(n *publish.Node) {
			n.Status.GPUs[0].State = "lost"
			n.MIG.GPUs[0].Instances = []api.MIGInstance{{ProfileID: 9, Profile: "3g.40gb", Placement: api.MIGPlacement{Size: 4}, InUse: true}}
		}, first, "", "gpushare.dev/lost:NoExecute"},
		"lost with memory of other grants": {func(n *publish.Node) {
			n.Status.GPUs[1].State = "missing"
			n.Status.GPUs[1].Granted = []api.GrantedMemory{{Tenant: others, Grant: "x", Bytes: 60 << 30}}
		}, part, "", "gpushare.dev/missing:NoExecute"},
		"lost with a local lease": {func(n *publish.Node) {
			n.Status.GPUs[2].State = "no-driver"
			n.Status.Leases = append(n.Status.Leases, owned)
		}, whole, "", "gpushare.dev/no-driver:NoExecute"},
		"lost, of another engine": {func(n *publish.Node) {
			n.Status.GPUs[2].State, n.Status.GPUs[2].Owner = "lost", "slurm"
		}, whole, "belongs to slurm", ""},
		"one call has failed": {func(n *publish.Node) {
			n.Status.GPUs[2].State = "unreadable"
			n.Status.GPUs[2].Closures = []api.Closure{{Kind: "unanswered"}}
		}, whole, "", "gpushare.dev/unanswered:NoSchedule"},
		"unreadable for long": {func(n *publish.Node) {
			n.Status.GPUs[2].State, n.Failing = "unreadable", map[string]bool{"GPU-whole": true}
			n.Status.Leases = append(n.Status.Leases, owned)
		}, whole, "", "gpushare.dev/unreadable:NoExecute"},
		"MPS of another instance does not run": {func(n *publish.Node) {
			n.Status.GPUs[0].State = "mps-down"
			n.Status.GPUs[0].Closures = []api.Closure{{Kind: "mps-down", Instance: &api.MIGPlacement{Start: 4, Size: 4}}}
		}, first, "", ""},
		"MPS of the instance does not run": {func(n *publish.Node) {
			n.Status.GPUs[0].State = "mps-down"
			n.Status.GPUs[0].Closures = []api.Closure{{Kind: "mps-down", Instance: &api.MIGPlacement{Start: 0, Size: 4}}}
		}, first, "", "gpushare.dev/mps-down:NoSchedule"},
		"maintenance": {
			func(n *publish.Node) { n.Status.Node.Maintenance = &api.Maintenance{} }, whole, "", "gpushare.dev/maintenance:NoSchedule",
		},
	} {
		n := newWorld(t, b, 2).node()
		c.change(n)
		d, published := devicesOf(n)[c.device]
		if why := withheld(n, c.device); published != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %s is published %v, withheld because %q", name, c.device, published, why)
		}
		var taints []string
		for _, x := range d.Taints {
			taints = append(taints, x.Key+":"+string(x.Effect))
		}
		if got := strings.Join(taints, " "); got != c.taint {
			t.Errorf("%s: the taints of %s are %q, want %q", name, c.device, got, c.taint)
		}
	}
}

// Nothing that is published breaks a limit of the API.
func TestWithinTheLimitsOfTheAPI(t *testing.T) {
	t.Parallel()
	boards, err := board.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boards {
		for i, s := range publish.Resources(newWorld(t, b, 2).node(), pool).Pools[pool].Slices {
			if len(s.Devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures ||
				len(s.SharedCounters) > resourceapi.ResourceSliceMaxCounterSets ||
				len(s.Devices) > 0 && len(s.SharedCounters) > 0 {
				t.Errorf("%s: slice %d has %d devices and %d sets of counters", b.Short, i, len(s.Devices), len(s.SharedCounters))
			}
			for _, c := range s.SharedCounters {
				if len(c.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
					t.Errorf("%s: set %s has %d counters", b.Short, c.Name, len(c.Counters))
				}
			}
			for _, d := range s.Devices {
				if len(d.Name) > 63 || strings.ToLower(d.Name) != d.Name || strings.ContainsAny(d.Name, "._+") ||
					len(d.ConsumesCounters) > resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
					t.Errorf("%s: device %+v", b.Short, d)
				}
			}
		}
	}
}
