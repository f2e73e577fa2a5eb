//go:build vm

package vm

import (
	"testing"
	"time"
)

// TestMechanisms guards what the product relies on in systemd and the kernel, with nothing of the product in the guest.
func TestMechanisms(t *testing.T) {
	need(t)
	img := baseImage(t)
	m := machine{img: img, disk: newDisk(t, img), payload: payload(t, map[string]string{"guest": "guest"})}

	rep, off := m.boot(t, "mechanisms")
	publish(t, rep)
	t.Run("power_off_with_a_frozen_lease", func(t *testing.T) {
		// Seen: 4 to 7 s on an idle machine. The default stop timeout of a scope would make it 90 s.
		t.Logf("off %.1f s after the last check", off.Seconds())
		if !rep.Done || off > time.Minute {
			t.Errorf("the power went off %s after the last check", off)
		}
	})
	t.Run("reboot", func(t *testing.T) {
		rep, _ := m.boot(t, "mechanisms-reboot")
		publish(t, rep)
	})
}

// TestProduct installs what make build made, on the virtual node, and lives through a day of it: apply, jobs, reloads,
// crashes, and a boot.
func TestProduct(t *testing.T) {
	need(t)
	img := baseImage(t)
	m := machine{img: img, disk: newDisk(t, img), payload: payload(t, map[string]string{
		"guest": "guest", "stage": stage(t), "gpusim": simulator(t),
	})}

	rep, _ := m.boot(t, "product")
	publish(t, rep)
	t.Run("reboot", func(t *testing.T) {
		rep, _ := m.boot(t, "product-reboot")
		publish(t, rep)
	})
}
