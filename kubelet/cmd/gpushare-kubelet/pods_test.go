package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// podCgroup is the path of the cgroup of a pod below the mount.
func podCgroup(pod string) string {
	return "/kubepods.slice/kubepods-pod" + strings.ReplaceAll(pod, "-", "_") + ".slice"
}

func (d *driver) cgroupOf(pod string) string { return filepath.Join(d.cgroups, podCgroup(pod)) }

// makeCgroup does what the kubelet does before it prepares claims of a pod.
func (d *driver) makeCgroup(t *testing.T, pod string) {
	t.Helper()
	if err := os.MkdirAll(d.cgroupOf(pod), 0o755); err != nil {
		t.Fatal(err)
	}
}

// The lease of a claim has the cgroups of all its pods: of those that are reserved when it is prepared, and of those that come later, for
// which the kubelet asks nothing. It is kept without any of them.
func TestClaimOfSeveralPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	k := d.register(t)
	claim := d.claim(t, "shared", device(gpu2))
	reserve := func(pods ...string) { d.reserve(claim, pods...) }
	create := func(pod string) { t.Helper(); d.makeCgroup(t, pod) }
	one := func(when string) api.Lease {
		t.Helper()
		l := leases(t, n)
		if len(l) != 1 {
			t.Fatalf("%s: it has leases %v", when, l)
		}
		return l[0]
	}
	reserve("pod-a")
	if r, err := k.prepare(soon(t), claim); err != nil || !strings.Contains(r.Error, "its pod has no cgroup") {
		t.Errorf("without a cgroup it is prepared: %v, %v", r, err)
	}
	create("pod-a")
	create("pod-b")
	reserve("pod-a", "pod-b")
	if r, err := k.prepare(soon(t), claim); err != nil || r.Error != "" {
		t.Fatalf("it is not prepared: %v %v", r, err)
	}
	first := one("with two pods")
	if e := first.Engine; !e.Kept ||
		!slices.Equal(slices.Sorted(slices.Values(e.Cgroups)), []string{podCgroup("pod-a"), podCgroup("pod-b")}) {
		t.Errorf("the lease is %+v", e)
	}
	// A third pod: the kubelet has prepared the claim already, and does not ask again.
	reserve("pod-a", "pod-b", "pod-c")
	d.server.addPod("pod-c", "shared")
	create("pod-c")
	err := harness.Await(soon(t), 20*time.Millisecond, "the third pod does not join", func() (bool, error) {
		return slices.Contains(one("with a third pod").Engine.Cgroups, podCgroup("pod-c")), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if l := one("with a third pod"); l.ID != first.ID {
		t.Errorf("lease %s became %s", first.ID, l.ID)
	}
	second := d.claim(t, "second", device(gpu3))
	second.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-a", UID: "pod-a"}}
	d.server.add(second)
	if r, err := k.prepare(soon(t), second); err != nil || !strings.Contains(r.Error, "its pod has claim team/shared already") {
		t.Errorf("a second claim of a pod is answered with %v: %v", r, err)
	}
	for _, pod := range []string{"pod-a", "pod-b"} {
		if err := os.Remove(d.cgroupOf(pod)); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := k.prepare(soon(t), claim); err != nil || r.Error != "" {
		t.Errorf("after the end of two pods it is not prepared: %v %v", r, err)
	}
	if l := one("after the end of two pods"); l.ID != first.ID {
		t.Errorf("lease %s became %s", first.ID, l.ID)
	}
	checkFile(t, d, claim, &first)
	if why, err := k.unprepare(soon(t), claim); err != nil || why != "" {
		t.Errorf("it is not unprepared: %s %v", why, err)
	}
}
