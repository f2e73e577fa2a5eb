package publish_test

import (
	"maps"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// wholeGPUs is a node of exclusive GPUs with these UUIDs, in the order of their indexes.
func wholeGPUs(uuids ...string) *publish.Node {
	s := &api.Status{Node: api.NodeStatus{Enforce: "on"}}
	for i, id := range uuids {
		s.GPUs = append(s.GPUs, api.GPUStatus{Index: i, UUID: id, Mode: api.ModeExclusive, State: "ok"})
	}
	s.Tenants = []api.TenantStatus{{Name: "kubernetes", Grants: []api.GrantStatus{{Name: "one", GPUs: uuids}}}}
	t := &api.TenantSpec{Name: "kubernetes", Grants: []api.GrantSpec{{Name: "one", Exclusive: 1}}}
	return &publish.Node{Status: s, MIG: &api.MIGList{}, Tenant: t}
}

// byUUID are the names of the devices.
func byUUID(n *publish.Node) map[string]string {
	out := map[string]string{}
	for _, o := range publish.Offers(n) {
		out[o.GPU] = o.Name
	}
	return out
}

const (
	first  = "GPU-5f0b3c1a-6a1b-8f2e-9d00-0c1d2e3f4a5b"
	second = "GPU-8831bb02-6a1b-8f2e-9d00-0c1d2e3f4a5b"
	third  = "GPU-c0ffee00-6a1b-8f2e-9d00-0c1d2e3f4a5b"
	// alike begins as third does.
	alike = "GPU-c0ffee00-6a1c-8f2e-9d00-0c1d2e3f4a5b"
)

// A device has one name as long as its GPU is in the machine, also when the driver is loaded again without another GPU and the indexes move.
func TestNameOfAGPUDoesNotMove(t *testing.T) {
	t.Parallel()
	n := wholeGPUs(first, second, third)
	before := byUUID(n)
	if before[first] != "gpu-5f0b3c1a" || before[third] != "gpu-c0ffee00" {
		t.Errorf("the devices are %v", before)
	}
	// The second GPU is missing, and the third has its index.
	g := n.Status.GPUs
	g[1].Index, g[1].State, g[2].Index = -1, "missing", 1
	n.Status.GPUs = []api.GPUStatus{g[0], g[2], g[1]}
	for id, name := range byUUID(n) {
		if name != before[id] {
			t.Errorf("%s was %s and is %s", id, before[id], name)
		}
	}
	for name, d := range devicesOf(n) {
		a, ok := d.Attributes["index"]
		want := map[string]int64{before[first]: 0, before[third]: 1}
		if index, has := want[name]; has != ok || ok && *a.IntValue != index {
			t.Errorf("%s has the attribute index %v", name, a)
		}
	}
}

// Two GPUs whose UUIDs begin alike have names of more digits.
func TestNamesDiffer(t *testing.T) {
	t.Parallel()
	names := byUUID(wholeGPUs(first, third, alike))
	want := map[string]string{first: "gpu-5f0b3c1a", third: "gpu-c0ffee006a1b", alike: "gpu-c0ffee006a1c"}
	if !maps.Equal(names, want) {
		t.Errorf("the devices are %v, want %v", names, want)
	}
}
