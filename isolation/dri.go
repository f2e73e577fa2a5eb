package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// ClassDRI is the class of the nodes of the kernel's graphics drivers (nvidia-drm). It belongs to GPUs: a lease gets those of its
// own GPU.
const ClassDRI = "dri"

// nvidiaVendor is the PCI vendor of NVIDIA, as in the file vendor of a device in /sys. The nodes of other vendors, like the
// display of a BMC, give no access to a GPU.
const nvidiaVendor = "0x10de"

// renderNode is how the names of render nodes begin. The others, card*, also set display modes.
const renderNode = "/dev/dri/renderD"

// readDRI reads the graphics nodes of the NVIDIA GPUs below root. Their numbers follow the order in which the drivers were
// loaded, not that of the GPUs, so they are found by the PCI device (the directory drm of a device in /sys). A host has hundreds of PCI
// devices, and their directories have dozens of files: only those that have graphics nodes are listed.
func readDRI(root string) (map[string][]cgroup.DeviceRule, error) {
	found := map[string][]cgroup.DeviceRule{}
	devices := filepath.Join(root, "sys/bus/pci/devices")
	addresses, err := listed(devices)
	if err != nil {
		return nil, err
	}
	for _, pci := range addresses { // in the form of gpu.Identity
		nodes, err := listed(filepath.Join(devices, pci, "drm"))
		if err != nil {
			return nil, err
		}
		if len(nodes) == 0 {
			continue
		}
		vendor, err := boundedread.Trusted(filepath.Join(devices, pci, "vendor"), boundedread.Value)
		if err != nil || strings.TrimSpace(string(vendor)) != nvidiaVendor {
			continue
		}
		for _, node := range nodes {
			rule, ok, err := driRule(filepath.Join(devices, pci, "drm", node, "dev"), node)
			if err != nil {
				return nil, fmt.Errorf("cannot read the graphics node %s: %w", node, err)
			}
			if ok {
				found[pci] = append(found[pci], rule)
			}
		}
	}
	return found, nil
}

// driRule returns the rule of a graphics node, whose numbers are in a file; ok is false for what is no node, or is removed by now.
func driRule(file, node string) (rule cgroup.DeviceRule, ok bool, err error) {
	text, err := boundedread.Trusted(file, boundedread.Value)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return rule, false, nil
	}
	if err != nil {
		return rule, false, err
	}
	rule = cgroup.DeviceRule{Type: 'c', Access: "rw", Name: "/dev/dri/" + node}
	_, err = fmt.Sscanf(string(text), "%d:%d", &rule.Major, &rule.Minor)
	return rule, err == nil, err
}

// listed returns the names in a directory in their order; one that does not exist has none.
func listed(dir string) ([]string, error) {
	var all []string
	err := boundedread.EachName(dir, func(names []string) bool {
		all = append(all, names...)
		return true
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		err = nil
	}
	slices.Sort(all)
	return all, err
}

// driRules are the render nodes of the targets. A render node is one of the whole GPU: of instances only those with graphics get it, which
// cannot be used without.
func driRules(h *Hardware, targets []Target) (rules []cgroup.DeviceRule, missing []string) {
	for _, t := range targets {
		d, ok := h.gpu(t.GPU)
		if !ok {
			continue // targetRules reports it.
		}
		if t.Instance != nil && !t.Graphics {
			missing = append(missing, "devices of class dri: an instance without graphics (+gfx) has none")
			continue
		}
		was := len(rules)
		for _, r := range h.Host.DRI[d.Identity.PCI] {
			if strings.HasPrefix(r.Name, renderNode) {
				rules = append(rules, r)
			}
		}
		if len(rules) == was {
			missing = append(
				missing,
				fmt.Sprintf(
					"devices of class dri: none found for GPU %d: the module nvidia-drm is not loaded, or without modeset=1",
					d.Identity.Index,
				),
			)
		}
	}
	return rules, missing
}

// driRanges are all graphics nodes of a GPU.
func driRanges(h *Hardware, d *gpu.Snapshot) []device.Range {
	var out []device.Range
	for _, r := range h.Host.DRI[d.Identity.PCI] {
		out = append(out, device.Range{Type: r.Type, Major: r.Major, First: r.Minor, Last: r.Minor})
	}
	return out
}

// driRangesBut are the graphics nodes of all NVIDIA GPUs, except those with these PCI addresses.
func driRangesBut(host *Host, open map[string]bool) []device.Range {
	var out []device.Range
	for pci, rules := range host.DRI {
		for _, r := range rules {
			if !open[pci] {
				out = append(out, device.Range{Type: r.Type, Major: r.Major, First: r.Minor, Last: r.Minor})
			}
		}
	}
	return out
}
