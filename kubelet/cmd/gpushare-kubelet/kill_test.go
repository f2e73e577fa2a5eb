package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
)

// leastPlaces is how many places Prepare and Unprepare have at least: two for each request to gpushared, and each step of a file.
const leastPlaces = 15

// The driver is killed before and after every request to gpushared, and after every step of a file, of Prepare and Unprepare, and the kubelet
// asks the next one again, or ends the pod instead: a claim has one lease and one file, and nothing is left of it in the end.
func TestDriverKilledAtEveryPlace(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	for i := 1; ; i++ {
		d := newDriver(t, n)
		claim := d.claim(t, fmt.Sprintf("killed-%d", i), []resourceapi.DeviceRequestAllocationResult{
			device(gpu0 + "-mig-3g-40gb-0"), part(gpu1+"-serve", "20Gi", "10"), device(gpu2),
		}[i%3])
		d.start(t, fmt.Sprintf("kubelet.*:kill@%d", i))
		k := d.register(t)
		_, prepared := k.prepare(soon(t), claim)
		if prepared == nil {
			if _, err := k.unprepare(soon(t), claim); err == nil {
				d.job.Kill()
				if i-1 < leastPlaces {
					t.Errorf("there are %d places where the driver can be killed", i-1)
				}
				return
			}
		}
		d.killed(t)
		if len(leases(t, n)) > 1 {
			t.Errorf("killed at place %d: the claim has %d leases", i, len(leases(t, n)))
		}
		d.start(t, "")
		k = d.register(t)
		if prepared != nil && i%2 == 0 { // The pod starts after all.
			if r, err := k.prepare(soon(t), claim); err != nil || r.Error != "" {
				t.Errorf("killed at place %d: it is not prepared again: %v %v", i, r, err)
			}
			if l := leases(t, n); len(l) != 1 {
				t.Errorf("killed at place %d: it has %d leases", i, len(l))
			} else {
				checkFile(t, d, claim, &l[0])
			}
		}
		if why, err := k.unprepare(soon(t), claim); err != nil || why != "" {
			t.Errorf("killed at place %d: it is not unprepared: %s %v", i, why, err)
		}
		if l, f := leases(t, n), d.files(t); len(l)+len(f) > 0 {
			t.Errorf("killed at place %d: left are leases %v and files %v", i, l, f)
		}
		d.job.Kill()
	}
}

// gpushared is killed while a claim is prepared: it is one lease before and after, with its file, and a claim is refused in plain words meanwhile.
func TestClaimsOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	k := d.register(t)
	claim := d.claim(t, "over", device(gpu0+"-mig-3g-40gb-4"))
	if r, err := k.prepare(soon(t), claim); err != nil || r.Error != "" {
		t.Fatalf("it is not prepared: %v %v", r, err)
	}
	before := leases(t, n)
	n.KillDaemon()
	r, err := k.prepare(soon(t), claim)
	if err != nil || r.Error == "" {
		t.Errorf("without gpushared it is answered with %v: %v", r, err)
	}
	if _, err := os.Stat(filepath.Join(d.cdi(), api.ClaimFilePrefix+string(claim.UID)+".json")); err != nil {
		t.Error(err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if r, err := k.prepare(soon(t), claim); err != nil || r.Error != "" {
		t.Errorf("it is not prepared again: %v %v", r, err)
	}
	if after := leases(t, n); len(before) != 1 || len(after) != 1 || after[0].ID != before[0].ID {
		t.Errorf("its lease was %v and is %v", before, after)
	}
	if f := d.files(t); len(f) != 1 {
		t.Errorf("the files are %v", f)
	}
	if why, err := k.unprepare(soon(t), claim); err != nil || why != "" {
		t.Errorf("it is not unprepared: %s %v", why, err)
	}
	if l, f := leases(t, n), d.files(t); len(l)+len(f) > 0 {
		t.Errorf("left are leases %v and files %v", l, f)
	}
}

// A GPU that another tenant has is not offered, one that an administrator closed has a taint, and both are again as they were afterwards.
func TestPublishedAsTheNodeIs(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	has := func(name string) func(map[string]resourceapi.Device) bool {
		return func(m map[string]resourceapi.Device) bool { _, ok := m[name]; return ok }
	}
	d.server.await(t, "GPU 3 is not published", has(gpu3))
	if r := n.CLI(soon(t), "lease", "attach", "-t", "local", "--key", "slurm:1", "--gpu", "3", "--grant", "big"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	d.server.await(t, "GPU 3 is published", func(m map[string]resourceapi.Device) bool { return len(m) > 0 && !has(gpu3)(m) })
	if r := n.CLI(soon(t), "lease", "release", "--key", "slurm:1"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	d.server.await(t, "GPU 3 is not published again", has(gpu3))
	if r := n.CLI(soon(t), "gpu", "cordon", "2"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	tainted := func(m map[string]resourceapi.Device) bool {
		taints := m[gpu2].Taints
		return len(taints) == 1 && taints[0].Key == "gpushare.dev/cordoned" && taints[0].Effect == resourceapi.DeviceTaintEffectNoSchedule
	}
	d.server.await(t, "GPU 2 has no taint", tainted)
	if r := n.CLI(soon(t), "gpu", "uncordon", "2"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	d.server.await(
		t,
		"GPU 2 has a taint",
		func(m map[string]resourceapi.Device) bool { return has(gpu2)(m) && len(m[gpu2].Taints) == 0 },
	)
	if d.server.writes > 40 {
		t.Errorf("four changes were published with %d writes", d.server.writes)
	}
}
