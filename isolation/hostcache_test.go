package isolation

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A lease reads the host several times, and once more when it may be missing: what was read for an observation stays valid for it, until the kernel has other
// drivers.
func TestHostIsReadOnceForEachObservation(t *testing.T) {
	h := &HostCache{Root: t.TempDir()}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(h.Root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	cpus := func(text string) { t.Helper(); write("sys/devices/system/node/node0/cpulist", text) }
	expect := func(observation any, want, why string) {
		t.Helper()
		host, err := h.At(observation)
		if err != nil || host.CPUs[0] != want {
			t.Errorf("%s: it has the CPUs %q (%v), want %q", why, host.CPUs[0], err, want)
		}
	}
	write("proc/devices", "Character devices:\n195 nvidia\n")
	cpus("0-1")
	first, second := new(int), new(int)
	expect(first, "0-1", "at first")
	cpus("0-2")
	expect(first, "0-1", "for the same observation")
	expect(nil, "0-2", "for no observation")
	cpus("0-3")
	expect(first, "0-2", "for the same observation, after it was read again")
	expect(second, "0-3", "for another observation")
	cpus("0-4")
	expect(second, "0-3", "for that one again")
	write("proc/devices", "Character devices:\n195 nvidia\n509 nvidia-uvm\n")
	expect(second, "0-4", "for the same observation, after a driver was loaded")
}
