package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/api"
)

func (d *driver) cgroupOf(pod string) string {
	return filepath.Join(d.cgroups, "kubepods.slice", "kubepods-pod"+strings.ReplaceAll(pod, "-", "_")+".slice")
}

// The lease of a claim of several pods has the processes of the one that is prepared now, which is reserved last, and keeps them while
// that pod is there. A lease that waits for a pod that has gone is replaced by one of a pod that is there.
func TestClaimOfSeveralPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	k := d.register(t)
	claim := d.claim(t, "shared", device("gpu-2"))
	prepared := func(when string, pods ...string) api.Lease {
		t.Helper()
		claim.Status.ReservedFor = nil
		for _, pod := range pods {
			claim.Status.ReservedFor = append(
				claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)},
			)
		}
		d.server.add(claim)
		if r, err := k.prepare(soon(t), claim); err != nil || r.Error != "" {
			t.Fatalf("%s: it is not prepared: %v %v", when, r, err)
		}
		l := leases(t, n)
		if len(l) != 1 {
			t.Fatalf("%s: it has leases %v", when, l)
		}
		checkFile(t, d, claim, &l[0])
		return l[0]
	}
	of := func(l *api.Lease, pod string) bool {
		return strings.Contains(strings.Join(l.Command, " "), "(pod "+pod+")")
	}
	for _, pod := range []string{"pod-a", "pod-b", "pod-c"} {
		if err := os.MkdirAll(d.cgroupOf(pod), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	first := prepared("with two pods", "pod-a", "pod-b")
	if !of(&first, "pod-b") {
		t.Errorf("the lease is of %v, not of the pod that came last", first.Command)
	}
	if l := prepared("with a third pod", "pod-a", "pod-b", "pod-c"); l.ID != first.ID {
		t.Errorf("lease %s became %s, and its pod is there", first.ID, l.ID)
	}
	if err := os.Remove(d.cgroupOf("pod-b")); err != nil {
		t.Fatal(err)
	}
	if l := prepared("after the end of its pod", "pod-a", "pod-b", "pod-c"); l.ID == first.ID || !of(&l, "pod-c") {
		t.Errorf("the lease is %s of %v still, and its pod has gone", l.ID, l.Command)
	}
}
