package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/test/harness"
)

// evicts reports whether pods are moved away from a device.
func evicts(d *resourceapi.Device) bool {
	for _, x := range d.Taints {
		if strings.HasPrefix(x.Key, "gpushare.dev/") && x.Effect == resourceapi.DeviceTaintEffectNoExecute {
			return true
		}
	}
	return false
}

// The instances of a GPU that is lost, or of all while the driver is unloaded, stay published with a taint that moves their pods: those in
// use as the free ones. Their claims are unprepared meanwhile, and leave nothing. After a boot of the GPUs, or a load of the driver, they are
// offered again.
func TestInstancesOfALostGPU(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ctl  []string
		back string
	}{
		"the GPU has fallen off the bus": {[]string{"xid", "0", "79"}, "reboot"},
		"the driver is unloaded":         {[]string{"driver-unload", "--force"}, "driver-load"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, virtual, spec)
			d := newDriver(t, n)
			d.start(t, "")
			k := d.register(t)
			const used, free = gpu0 + "-mig-3g-40gb-0", gpu0 + "-mig-3g-40gb-4"
			d.server.await(t, "the node is not published", func(m map[string]resourceapi.Device) bool { return len(m) > 0 })
			claim := d.claim(t, "on-it", device(used))
			if r, err := k.prepare(soon(t), claim); err != nil || r.Error != "" {
				t.Fatalf("it is not prepared: %v %v", r, err)
			}
			if err := n.Ctl(soon(t), nil, c.ctl...); err != nil {
				t.Fatal(err)
			}
			d.server.await(t, "its instances have no taint", func(m map[string]resourceapi.Device) bool {
				a, b := m[used], m[free]
				return evicts(&a) && evicts(&b)
			})
			if why, err := k.unprepare(soon(t), claim); err != nil || why != "" {
				t.Errorf("it is not unprepared: %s %v", why, err)
			}
			if l, f := leases(t, n), d.files(t); len(l)+len(f) > 0 {
				t.Errorf("left are leases %v and files %v", l, f)
			}
			cli := func(args ...string) {
				t.Helper()
				if r := n.CLI(soon(t), args...); r.Code != 0 {
					t.Fatalf("gpushare %v: %+v", args, r)
				}
			}
			cli("maintenance", "on", "--driver", "--wait", "1m")
			if err := n.Ctl(soon(t), nil, c.back); err != nil {
				t.Fatal(err)
			}
			cli("maintenance", "off")
			d.server.await(t, "its instances are not offered again", func(m map[string]resourceapi.Device) bool {
				a, b := m[used], m[free]
				return a.Name == used && b.Name == free && len(a.Taints)+len(b.Taints) == 0
			})
		})
	}
}

// Calls about a GPU that fail with an unknown error close its device, and move no pod away within seconds.
func TestFailedCallsEvictNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	d.register(t)
	const part = gpu1 + "-serve"
	d.server.await(t, "the node is not published", func(m map[string]resourceapi.Device) bool { return len(m) > 0 })
	ctl := func(args ...string) {
		t.Helper()
		if err := n.Ctl(soon(t), nil, args...); err != nil {
			t.Fatal(err)
		}
	}
	ctl("fault", "add", "DeviceGetMemoryInfo*", "fail", "--gpu", "1", "--code", "999", "--times", "-1")
	await := func(what string, closed bool) {
		t.Helper()
		d.server.await(t, what, func(m map[string]resourceapi.Device) bool {
			x := m[part]
			if evicts(&x) {
				t.Errorf("failed calls evict: %+v", x.Taints)
			}
			unanswered := func(x resourceapi.DeviceTaint) bool { return x.Key == "gpushare.dev/unanswered" }
			return slices.ContainsFunc(x.Taints, unanswered) == closed
		})
	}
	await("its device is not closed", true)
	ctl("fault", "clear")
	await("its device is not open again", false)
}

// The driver starts again while a GPU is lost, or while gpushared has started before the driver of the GPUs was loaded: no instance is
// withdrawn meanwhile, and the one of a lost GPU moves its pods away.
func TestDriverStartsWithoutAGPU(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"a GPU is lost": true, "the driver of the GPUs comes late": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, virtual, spec)
			d := newDriver(t, n)
			d.start(t, "")
			d.register(t)
			const instance = gpu0 + "-mig-3g-40gb-0"
			d.server.await(t, "the node is not published", func(m map[string]resourceapi.Device) bool { return len(m) > 0 })
			ctl := func(args ...string) {
				t.Helper()
				if err := n.Ctl(soon(t), nil, args...); err != nil {
					t.Fatal(err)
				}
			}
			if lost {
				ctl("xid", "0", "79")
				d.server.await(t, "it does not evict", func(m map[string]resourceapi.Device) bool { x := m[instance]; return evicts(&x) })
				d.job.Kill()
			} else {
				d.job.Kill()
				n.StopDaemon()
				ctl("driver-unload", "--force")
				if err := n.StartDaemon(soon(t)); err != nil {
					t.Fatal(err)
				}
			}
			d.start(t, "")
			d.register(t)
			if !lost {
				said := "the node is not published yet"
				if err := harness.Await(soon(t), 20*time.Millisecond, "it does not wait", func() (bool, error) {
					return strings.Contains(d.job.Output(), said), nil
				}); err != nil {
					t.Fatal(err)
				}
				ctl("driver-load")
				if err := harness.Await(soon(t), 20*time.Millisecond, "the driver is not used", func() (bool, error) {
					return !status(t, n).Node.Starting, nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if r := n.CLI(soon(t), "gpu", "cordon", "2"); r.Code != 0 { // What is published next is of the driver that runs now.
				t.Fatalf("%+v", r)
			}
			d.server.await(t, "GPU 2 is not closed", func(m map[string]resourceapi.Device) bool {
				x, there := m[instance]
				if !there || evicts(&x) != lost {
					t.Errorf("the instance is published %v, with taints %+v", there, x.Taints)
				}
				return len(m[gpu2].Taints) > 0
			})
		})
	}
}
