package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/pods"
	"github.com/gpushare/gpushare/test/harness"
)

// names finds published devices by what they are: how they are called is the business of what publishes them.
type names map[string]resourceapi.Device

func (d *driver) names(t *testing.T) names {
	t.Helper()
	return d.server.await(t, "the node is not published", func(m map[string]resourceapi.Device) bool { return len(m) > 0 })
}

func (n names) find(t *testing.T, what string, is func(a map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) bool) string {
	t.Helper()
	for name := range n {
		if is(n[name].Attributes) {
			return name
		}
	}
	t.Fatalf("%s is not published", what)
	return ""
}

// instance is that of a profile at a memory slice.
func (n names) instance(t *testing.T, profile string, start int64) string {
	t.Helper()
	return n.find(t, fmt.Sprintf("%s at %d", profile, start), func(a map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) bool {
		p, at := a["profile"].StringValue, a["placementStart"].IntValue
		return p != nil && *p == profile && at != nil && *at == start
	})
}

// grant is the part of a shared GPU.
func (n names) grant(t *testing.T, grant string) string {
	t.Helper()
	return n.find(t, "grant "+grant, func(a map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) bool {
		g := a["grant"].StringValue
		return g != nil && *g == grant
	})
}

// whole is a GPU.
func (n names) whole(t *testing.T, index int64) string {
	t.Helper()
	return n.find(t, fmt.Sprintf("GPU %d", index), func(a map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) bool {
		kind, i := a["type"].StringValue, a["index"].IntValue
		return kind != nil && *kind == "gpu" && i != nil && *i == index
	})
}

// reserve makes a claim that of pods, whose names are their uids.
func (d *driver) reserve(c *resourceapi.ResourceClaim, pods ...string) {
	c = c.DeepCopy()
	c.Status.ReservedFor = nil
	for _, pod := range pods {
		c.Status.ReservedFor = append(
			c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)},
		)
	}
	d.server.add(c)
}

// prepared prepares a claim.
func (k *kubelet) prepared(t *testing.T, c *resourceapi.ResourceClaim) {
	t.Helper()
	if r, err := k.prepare(soon(t), c); err != nil || r.Error != "" {
		t.Fatalf("%s is not prepared: %v %v", c.Name, r, err)
	}
}

// A pod has two claims, of which another pod has had the one prepared: the kubelet asks for the other alone, and before the pod has joined
// the lease of the first. It is refused by what the pod says that it uses.
func TestSecondClaimNextToASharedOne(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	k, devices := d.register(t), d.names(t)
	shared := d.claim(t, "shared", device(devices.whole(t, 2)))
	d.server.addPod("pod-a", "shared")
	d.makeCgroup(t, "pod-a")
	d.reserve(shared, "pod-a") // Of the second pod not yet: it does not join.
	k.prepared(t, shared)
	second := d.claim(t, "second", part(devices.grant(t, "serve"), "1Gi", "1"))
	d.server.addPod("pod-b", "shared", "second")
	d.makeCgroup(t, "pod-b")
	d.reserve(second, "pod-b")
	if r, err := k.prepare(soon(t), second); err != nil || !strings.Contains(r.Error, "its pod has claim team/shared already") {
		t.Errorf("the second claim is answered with %v: %v", r, err)
	}
	if l := leases(t, n); len(l) != 1 {
		t.Errorf("there are leases %v", l)
	}
	d.reserve(second, "pod-c") // It uses nothing else.
	d.server.addPod("pod-c", "second")
	d.makeCgroup(t, "pod-c")
	k.prepared(t, second)
	// Both are prepared, so the kubelet asks nothing for a pod with both: gpushared gives it to one of the leases, and an event of the
	// pod names the other.
	d.reserve(shared, "pod-a", "pod-d")
	d.reserve(second, "pod-c", "pod-d")
	d.server.addPod("pod-d", "shared", "second")
	d.makeCgroup(t, "pod-d")
	d.server.awaitEvent(t, "pod-d", pods.ReasonNotJoined, "has it, and a process is in one lease")
	had := 0
	for _, l := range leases(t, n) {
		if slices.Contains(l.Engine.Cgroups, podCgroup("pod-d")) {
			had++
		}
	}
	if had != 1 {
		t.Errorf("the pod with both is in %d leases", had)
	}
}

// A lease that is stopped, or whose time is over, takes the devices of its claim with it: a container that starts again would have them
// without a lease. So it is if it ended while the driver did not run. Its pod has an event, and a new pod a new lease.
func TestLeaseEndsBeforeItsClaim(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	k, devices := d.register(t), d.names(t)
	kept := d.claim(t, "other", device(devices.whole(t, 2)))
	k.prepared(t, kept)
	claim := d.claim(t, "stopped", part(devices.grant(t, "serve"), "30Gi", "40"))
	d.reserve(claim, "pod-stopped")
	d.server.addPod("pod-stopped", "stopped")
	for _, away := range []bool{false, true} {
		k.prepared(t, claim)
		l := leases(t, n)
		i := slices.IndexFunc(l, func(l api.Lease) bool { return l.Grant == "serve" })
		if i < 0 || len(d.files(t)) != 2 {
			t.Fatalf("prepared are %v and %v", l, d.files(t))
		}
		if away {
			d.job.Kill()
		}
		if r := n.CLI(soon(t), "lease", "stop", l[i].ID); r.Code != 0 {
			t.Fatalf("stop exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
		if away {
			d.start(t, "")
			k = d.register(t)
		}
		err := harness.Await(soon(t), 20*time.Millisecond, "the file outlives its lease", func() (bool, error) {
			return len(d.files(t)) == 1, nil
		})
		if err != nil {
			t.Fatalf("%v: %v", err, d.files(t))
		}
	}
	d.server.awaitEvent(t, "pod-stopped", pods.ReasonEnded, "the lease of its claim team/stopped has ended: ")
	if l := leases(t, n); len(l) != 1 || !strings.HasPrefix(l[0].Engine.Key, "kubernetes:uid-other:") {
		t.Errorf("the other claim has %v", l)
	}
	k.prepared(t, claim)
	for _, c := range []*resourceapi.ResourceClaim{claim, kept} {
		if why, err := k.unprepare(soon(t), c); err != nil || why != "" {
			t.Errorf("%s is not unprepared: %s %v", c.Name, why, err)
		}
	}
	if l, f := leases(t, n), d.files(t); len(l)+len(f) > 0 {
		t.Errorf("left are leases %v and files %v", l, f)
	}
}

// A claim that is allocated again has the lease of its device of now: of another profile at the same memory slice, and of another grant of
// the same GPU with the same amounts.
func TestAllocatedAgainAtTheSamePlace(t *testing.T) {
	t.Parallel()
	const half = "{share: 40%, gpu_memory: 30GiB}}\n"
	n := newNode(t, virtual, strings.Replace(
		spec, "{share: 80%, gpu_memory: 60GiB}}\n", half+"      - {name: batch, timeslice: "+half, 1,
	))
	d := newDriver(t, n)
	d.start(t, "")
	k, devices := d.register(t), d.names(t)
	for i, c := range []struct {
		first, second resourceapi.DeviceRequestAllocationResult
		grant         string
	}{
		{device(devices.instance(t, "3g.40gb", 4)), device(devices.instance(t, "1g.10gb", 4)), "small"},
		{device(devices.instance(t, "1g.10gb", 0)), device(devices.instance(t, "3g.40gb", 0)), "train"},
		{part(devices.grant(t, "serve"), "10Gi", "10"), part(devices.grant(t, "batch"), "10Gi", "10"), "batch"},
	} {
		name := fmt.Sprintf("again-%d", i)
		k.prepared(t, d.claim(t, name, c.first))
		claim := d.claim(t, name, c.second)
		k.prepared(t, claim)
		var l []api.Lease
		for _, x := range leases(t, n) {
			if strings.HasPrefix(x.Engine.Key, "kubernetes:uid-"+name+":") {
				l = append(l, x)
			}
		}
		if len(l) != 1 || l[0].Grant != c.grant {
			t.Errorf("%s: the leases are %+v, not one of grant %s", name, l, c.grant)
			continue
		}
		checkFile(t, d, claim, &l[0])
	}
}

// As many pods as a claim may have are in its lease.
func TestClaimOfManyPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	k, devices := d.register(t), d.names(t)
	claim := d.claim(t, "many", part(devices.grant(t, "serve"), "1Gi", "1"))
	k.prepared(t, claim)
	all := make([]string, resourceapi.ResourceClaimReservedForMaxSize)
	for i := range all {
		all[i] = fmt.Sprintf("many-%d", i)
		d.makeCgroup(t, all[i])
	}
	all[0] = "pod-many"
	d.reserve(claim, all...)
	for _, pod := range all {
		d.server.addPod(types.UID(pod), "many")
	}
	joined := 0
	err := harness.Await(soon(t), 100*time.Millisecond, "the pods do not all join", func() (bool, error) {
		joined = 0
		for _, l := range leases(t, n) {
			joined += len(l.Engine.Cgroups)
		}
		return joined == len(all), nil
	})
	if err != nil {
		t.Errorf("%d of %d pods: %v", joined, len(all), err)
	}
	k.prepared(t, claim)
}
