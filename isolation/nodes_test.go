package isolation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A node is missing when it does not exist, is no device, or has the numbers of an earlier load of the driver.
func TestMissingNodes(t *testing.T) {
	h := machine(t)
	rules, _, err := Rules(h, []Target{{GPU: "GPU-0", Instance: &h.GPUs[0].Instances[0].Placement}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	access := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", h.Host.Caps["gpu3/gi2/access"])
	for _, tt := range []struct {
		name    string
		change  func(path string) error // to the node of the instance's capability
		uvm     bool
		missing string
	}{
		{name: "all are there", uvm: true},
		{name: "missing", uvm: true, change: os.Remove, missing: access + ": it does not exist: -f /proc/driver/nvidia/capabilities/gpu3/mig/gi2/access"},
		{name: "of an earlier load", uvm: true, missing: access + ": it is the device 1:3, and the driver has 236:", change: func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/dev/null", path))
		}},
		{name: "a directory", uvm: true, missing: access + ": it is no device", change: func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
		}},
		{name: "without the module", missing: "/dev/nvidia-uvm: the module nvidia-uvm is not loaded, and CUDA needs it: -u -c 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for _, r := range rules {
				path := filepath.Join(root, r.Name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if tt.change != nil {
				if err := tt.change(filepath.Join(root, access)); err != nil {
					t.Fatal(err)
				}
			}
			host := machine(t).Host
			if !tt.uvm {
				delete(host.Majors, "nvidia-uvm")
			}
			var got []string
			for _, m := range MissingNodes(&host, root, rules) {
				got = append(got, m.Name+": "+m.Reason+": "+strings.Join(m.Helper, " "))
				if !m.Unloaded && len(m.Commands) != 3 {
					t.Errorf("%s is made by %v", m.Name, m.Commands)
				}
			}
			if len(got) > 1 || !strings.HasPrefix(strings.Join(got, ""), tt.missing) || tt.missing == "" && len(got) > 0 {
				t.Errorf("missing are %q, want %q", got, tt.missing)
			}
		})
	}
	if got := MissingNodes(&h.Host, "/nonexistent", nil); len(got) > 0 {
		t.Errorf("without a GPU %v is missing", got)
	}
}
