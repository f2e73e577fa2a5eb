package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/gpushare/api"
)

const virtual = `driver: "580"
gpus:
  - {model: A100-SXM4-80GB, uuid: GPU-00000000-0000-5000-8000-000000000000, mig: true}
  - {model: A100-SXM4-80GB, uuid: GPU-11111111-0000-5000-8000-000000000000}
  - {model: A100-SXM4-80GB, uuid: GPU-22222222-0000-5000-8000-000000000000}
  - {model: A100-SXM4-80GB, uuid: GPU-33333333-0000-5000-8000-000000000000}
`

// The names of its GPUs in those of devices.
const gpu0, gpu1, gpu2, gpu3 = "gpu-00000000", "gpu-11111111", "gpu-22222222", "gpu-33333333"

const spec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {dynamic: true}}
  - {select: {index: 1}, mode: timeslice}
  - {select: {index: [2, 3]}, mode: exclusive}
tenants:
  - name: kubernetes
    grants:
      - {name: train, mig: 3g.40gb, max_leases: 4}
      - {name: small, mig: 1g.10gb, max_leases: 14}
      - {name: serve, timeslice: {share: 80%, gpu_memory: 60GiB}}
      - {name: whole, exclusive: 1, max_leases: 2}
      - {name: pair, exclusive: 2}
  - name: local
    grants:
      - {name: big, exclusive: 1}
`

func device(name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Device: name}
}

func part(name, memory, share string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Device: name, ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
		"memory": resource.MustParse(memory), "share": resource.MustParse(share),
	}}
}

// A claim of each kind of device is one lease with its amounts and one CDI file, is the same when it is prepared again, and leaves nothing.
func TestClaims(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	published := d.server.await(t, "the node is not published", func(m map[string]resourceapi.Device) bool { return len(m) > 0 })
	for _, name := range []string{gpu0 + "-mig-3g-40gb-0", gpu0 + "-mig-3g-40gb-4", gpu0 + "-mig-1g-10gb-6", gpu1 + "-serve", gpu2, gpu3} {
		if _, ok := published[name]; !ok {
			t.Errorf("%s is not published", name)
		}
	}
	k := d.register(t)
	cases := []struct {
		name    string
		devices []resourceapi.DeviceRequestAllocationResult
		grant   string
		gpus    int
		memory  uint64
		share   float64
	}{
		{"instance", []resourceapi.DeviceRequestAllocationResult{device(gpu0 + "-mig-3g-40gb-4")}, "train", 1, 0, 0},
		{"first-part", []resourceapi.DeviceRequestAllocationResult{part(gpu1+"-serve", "30Gi", "40")}, "serve", 1, 30 << 30, 40},
		{"second-part", []resourceapi.DeviceRequestAllocationResult{part(gpu1+"-serve", "30Gi", "40")}, "serve", 1, 30 << 30, 40},
		{"both", []resourceapi.DeviceRequestAllocationResult{device(gpu2), device(gpu3)}, "pair", 2, 0, 0},
	}
	for _, c := range cases {
		claim := d.claim(t, c.name, c.devices...)
		first, err := k.prepare(soon(t), claim)
		if err != nil || first.Error != "" {
			t.Fatalf("%s is not prepared: %v %s", c.name, err, first.GetError())
		}
		again, err := k.prepare(soon(t), claim)
		if err != nil || again.String() != first.String() {
			t.Errorf("%s is prepared again as %v, and was %v: %v", c.name, again, first, err)
		}
		i := slices.IndexFunc(leases(t, n), func(l api.Lease) bool { return strings.HasPrefix(l.Engine.Key, "kubernetes:uid-"+c.name+":") })
		if i < 0 {
			t.Fatalf("%s has no lease", c.name)
		}
		l := leases(t, n)[i]
		if l.Tenant != "kubernetes" || l.Grant != c.grant || len(l.GPUs) != c.gpus || l.Engine.Account != "team" {
			t.Errorf("%s has lease %+v", c.name, l)
		}
		if c.memory > 0 && (l.GPUMemory.Limit != c.memory || l.Share.Entitled != c.share) {
			t.Errorf("%s has %+v and %+v", c.name, l.GPUMemory, l.Share)
		}
		checkFile(t, d, claim, &l)
		if len(first.Devices) != len(c.devices) || len(first.Devices[0].CdiDeviceIds) != 1 ||
			len(first.Devices[0].RequestNames) != len(c.devices) {
			t.Errorf("%s is answered with %v", c.name, first)
		}
	}
	if l := leases(t, n); len(l) != len(cases) {
		t.Errorf("%d claims have %d leases", len(cases), len(l))
	}
	refused := d.claim(t, "third-part", part(gpu1+"-serve", "30Gi", "10"))
	if r, err := k.prepare(soon(t), refused); err != nil || !strings.Contains(r.Error, "cannot prepare claim team/third-part: ") ||
		!strings.Contains(r.Error, "of its 60 GiB left") {
		t.Errorf("a claim without place is answered with %v: %v", r, err)
	}
	for _, c := range cases {
		claim := d.server.claims["team/"+c.name]
		for range 2 {
			if why, err := k.unprepare(soon(t), claim); err != nil || why != "" {
				t.Errorf("%s is not unprepared: %v %s", c.name, err, why)
			}
		}
	}
	if l, f := leases(t, n), d.files(t); len(l)+len(f) > 0 {
		t.Errorf("left are leases %v and files %v", l, f)
	}
	// The claim is allocated to a new pod: it has a lease again, although the key of the first has ended.
	claim := d.server.claims["team/instance"]
	if r, err := k.prepare(soon(t), claim); err != nil || r.Error != "" {
		t.Errorf("a claim that is prepared again is answered with %v: %v", r, err)
	}
}

// checkFile compares the CDI file of a claim with its lease.
func checkFile(t *testing.T, d *driver, c *resourceapi.ResourceClaim, l *api.Lease) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(d.cdi(), api.ClaimFilePrefix+string(c.UID)+".json"))
	if err != nil {
		t.Error(err)
		return
	}
	var s specs.Spec
	if err := json.Unmarshal(b, &s); err != nil {
		t.Error(err)
		return
	}
	if err := specs.ValidateVersion(&s); err != nil || s.Kind != "gpushare.dev/claim" || len(s.Devices) != 1 {
		t.Errorf("the file of %s is %s: %v", c.Name, b, err)
		return
	}
	e := s.Devices[0].ContainerEdits
	if !slices.Contains(e.Env, "GPUSHARE_LEASE="+l.ID) || !slices.Contains(e.Env, "CUDA_VISIBLE_DEVICES="+strings.Join(l.Devices, ",")) {
		t.Errorf("the environment of %s is %v, its lease is %+v", c.Name, e.Env, l)
	}
	nodes := 0
	for _, n := range e.DeviceNodes {
		if strings.HasPrefix(n.Path, "/dev/nvidia") {
			nodes++
		}
	}
	if nodes < 3 {
		t.Errorf("the device nodes of %s are %d", c.Name, nodes)
	}
}
