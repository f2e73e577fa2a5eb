package isolation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
)

// graphicsHost has three GPUs, whose graphics nodes are in another order, and a display of another vendor.
func graphicsHost(t *testing.T) *Hardware {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		"0000:07:00.0/vendor": "0x10de\n", "0000:07:00.0/drm/card2/dev": "226:2\n", "0000:07:00.0/drm/renderD129/dev": "226:129\n",
		"0000:0f:00.0/vendor": "0x10de\n", "0000:0f:00.0/drm/card1/dev": "226:1\n", "0000:0f:00.0/drm/renderD128/dev": "226:128\n",
		"0000:47:00.0/vendor": "0x10de\n", // without nvidia-drm
		"0000:03:00.0/vendor": "0x1a03\n", "0000:03:00.0/drm/card0/dev": "226:0\n",
	} {
		path = filepath.Join(root, "sys/bus/pci/devices", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, err := ReadHost(root)
	if err != nil {
		t.Fatal(err)
	}
	h := &Hardware{Host: host}
	for i, pci := range []string{"0000:07:00.0", "0000:0f:00.0", "0000:47:00.0"} {
		h.GPUs = append(
			h.GPUs, gpu.Snapshot{Identity: gpu.Identity{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, Minor: i, PCI: pci}},
		)
	}
	return h
}

// A lease gets the render nodes of its own GPU, which are found by the PCI address.
func TestClassDRI(t *testing.T) {
	h := graphicsHost(t)
	for _, tt := range []struct {
		name    string
		targets []Target
		classes []string
		want    string
		missing string
	}{
		{name: "without the class", targets: []Target{{GPU: "GPU-0"}}},
		{name: "the first GPU", targets: []Target{{GPU: "GPU-0"}}, classes: []string{ClassDRI}, want: "/dev/dri/renderD129"},
		{name: "the second GPU", targets: []Target{{GPU: "GPU-1"}}, classes: []string{ClassDRI}, want: "/dev/dri/renderD128"},
		{name: "two GPUs", targets: []Target{{GPU: "GPU-0"}, {GPU: "GPU-1"}}, classes: []string{ClassDRI}, want: "/dev/dri/renderD128 /dev/dri/renderD129"},
		{name: "without nvidia-drm", targets: []Target{{GPU: "GPU-2"}}, classes: []string{ClassDRI}, missing: "none found for GPU 2"},
		{name: "no GPU", classes: []string{ClassDRI}},
	} {
		rules, missing, err := Rules(h, tt.targets, tt.classes)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rules {
			if strings.HasPrefix(r.Name, "/dev/dri/") {
				got = append(got, r.Name)
			}
		}
		if strings.Join(got, " ") != tt.want || tt.missing != "" && !strings.Contains(fmt.Sprint(missing), tt.missing) ||
			tt.missing == "" && strings.Contains(fmt.Sprint(missing), "dri") {
			t.Errorf("%s: %v, missing %v", tt.name, got, missing)
		}
	}
	if _, missing := driRules(h, []Target{{GPU: "GPU-0", Instance: &gpu.Placement{}}}); len(missing) != 1 ||
		!strings.Contains(missing[0], "without graphics") {
		t.Errorf("of an instance: %v", missing)
	}
	slices, missing := Desired(
		h, []Tenant{{Name: "t", Classes: []string{ClassDRI}, Grants: []Grant{{Name: "g", Targets: []Target{{GPU: "GPU-1"}}}}}},
	)
	for _, s := range slices {
		var dri []cgroup.DeviceRule
		for _, r := range s.Devices {
			if r.Major == 226 {
				dri = append(dri, r)
			}
		}
		if d := cmp.Diff(
			[]cgroup.DeviceRule{{Type: 'c', Major: 226, Minor: 128, Access: "rwm", Name: "/dev/dri/renderD128"}}, dri,
		); d != "" {
			t.Errorf("slice %s, missing %v: %s", s.Name, missing, d)
		}
	}
}

// The login filter closes all graphics nodes of managed GPUs, and never those of other vendors.
func TestLoginFiltersCloseGraphicsNodes(t *testing.T) {
	h := graphicsHost(t)
	for _, tt := range []struct {
		name    string
		managed []gpu.UUID
		inPlace []InPlaceLease
		closed  string
		except  int
	}{
		{name: "one GPU", managed: []gpu.UUID{"GPU-0"}, closed: "[c 195:0 c 226:2 c 226:129]"},
		{name: "another", managed: []gpu.UUID{"GPU-1"}, closed: "[c 195:1 c 226:1 c 226:128]"},
		{name: "one that is missing now", managed: []gpu.UUID{"GPU-1", "GPU-9"}, closed: "[c 195:1 c 195:3-253 c 226:1 c 226:128]"},
		{
			name: "with a lease in place", managed: []gpu.UUID{"GPU-0"}, closed: "[c 195:0 c 226:2 c 226:129]", except: 1,
			inPlace: []InPlaceLease{{UID: 1000, Targets: []Target{{GPU: "GPU-0"}}}},
		},
		{
			name: "with a lease in place and the class", managed: []gpu.UUID{"GPU-0"}, closed: "[c 195:0 c 226:2 c 226:129]", except: 2,
			inPlace: []InPlaceLease{{UID: 1000, Targets: []Target{{GPU: "GPU-0"}}, Classes: []string{ClassDRI}}},
		},
	} {
		states, _ := LoginFilters(h, tt.managed, []string{"/user.slice"}, tt.inPlace)
		if got := fmt.Sprint(states[0].Filter.Closed); got != tt.closed || len(states[0].Filter.Except) != tt.except {
			t.Errorf("%s: closed is %s, %d exceptions, want %s, %d", tt.name, got, len(states[0].Filter.Except), tt.closed, tt.except)
		}
	}
	if got := fmt.Sprint(AllGPUs(&h.Host)); strings.Contains(got, "226:0") || !strings.Contains(got, "226:129") {
		t.Errorf("all GPUs are %s", got)
	}
}
