package isolation

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
)

// Target is what may be opened: a whole GPU, or one instance of it.
type Target struct {
	GPU      gpu.UUID
	Instance *gpu.Placement // nil: the whole GPU
}

// Hardware is the GPUs and the host as observed.
type Hardware struct {
	GPUs []gpu.Snapshot
	Host Host
}

// gpuMajor is the major of /dev/nvidia<minor> and /dev/nvidiactl (Linux's list of assigned numbers; the module asks for
// this one and no other).
const gpuMajor = 195

// controlMinor is the minor of /dev/nvidiactl.
const controlMinor = 255

// gpu finds a GPU as observed.
func (h *Hardware) gpu(id gpu.UUID) (*gpu.Snapshot, bool) {
	for i := range h.GPUs {
		if h.GPUs[i].Identity.UUID == id {
			return &h.GPUs[i], true
		}
	}
	return nil, false
}

// Rules is exactly what a process needs to open to use the targets and the classes of devices, sorted. Not in them:
// nvidia-uvm-tools, nvidia-modeset, the capabilities that configure and monitor MIG. It fails rather than
// allow what was not seen; missing tells of what is not there for now, like a module that is not loaded.
func Rules(h *Hardware, targets []Target, classes []string) (rules []cgroup.DeviceRule, missing []string, err error) {
	if len(targets) > 0 {
		rules = append(rules, node(gpuMajor, controlMinor, "rw", "/dev/nvidiactl"))
		if major, ok := h.Host.Majors["nvidia-uvm"]; ok {
			rules = append(rules, node(major, 0, "rw", "/dev/nvidia-uvm"))
		} else {
			missing = append(missing, "/dev/nvidia-uvm: the module nvidia-uvm is not loaded, and CUDA needs it")
		}
	}
	for _, t := range targets {
		r, err := targetRules(h, t)
		if err != nil {
			return nil, nil, err
		}
		rules = append(rules, r...)
	}
	for _, c := range classes {
		found := h.Host.Classes[c]
		if len(found) == 0 {
			missing = append(missing, fmt.Sprintf("devices of class %s: there are none", c))
		}
		rules = append(rules, found...)
	}
	return cgroup.SortRules(rules), missing, nil
}

// targetRules is what one target needs beside what every one needs.
func targetRules(h *Hardware, t Target) ([]cgroup.DeviceRule, error) {
	d, ok := h.gpu(t.GPU)
	if !ok {
		return nil, fmt.Errorf("cannot allow GPU %s: it was not seen", t.GPU)
	}
	minor := d.Identity.Minor
	if minor < 0 || minor == controlMinor {
		return nil, fmt.Errorf("cannot allow GPU %s: its device node is not known", t.GPU)
	}
	rules := []cgroup.DeviceRule{node(gpuMajor, uint32(minor), "rw", fmt.Sprintf("/dev/nvidia%d", minor))}
	if t.Instance == nil {
		if d.MIG.Current {
			return nil, fmt.Errorf("cannot allow GPU %s as a whole: it is in MIG mode", t.GPU)
		}
		return rules, nil
	}
	at := fmt.Sprintf("the instance at %d of GPU %s", t.Instance.Start, t.GPU)
	i := slices.IndexFunc(d.Instances, func(in gpu.Instance) bool { return in.Placement == *t.Instance })
	if i < 0 {
		return nil, fmt.Errorf("cannot allow %s: it was not seen", at)
	}
	in := &d.Instances[i]
	if len(in.Compute) == 0 {
		return nil, fmt.Errorf("cannot allow %s: it has no compute instance", at)
	}
	major, ok := h.Host.Majors["nvidia-caps"]
	if !ok {
		return nil, fmt.Errorf("cannot allow %s: the driver has no capability devices", at)
	}
	errUnknown := errors.New("the driver does not tell the numbers of its capabilities")
	n, ok := h.Host.Caps.GI(minor, in.ID)
	if !ok {
		return nil, fmt.Errorf("cannot allow %s: %w", at, errUnknown)
	}
	rules = append(rules, capability(major, n))
	for _, c := range in.Compute {
		n, ok := h.Host.Caps.CI(minor, in.ID, c.ID)
		if !ok {
			return nil, fmt.Errorf("cannot allow %s: %w", at, errUnknown)
		}
		rules = append(rules, capability(major, n))
	}
	return rules, nil
}

func node(major, minor uint32, access, name string) cgroup.DeviceRule {
	return cgroup.DeviceRule{Type: 'c', Major: major, Minor: minor, Access: access, Name: name}
}

// capability is the rule of one capability's node, which is only ever read.
func capability(major, minor uint32) cgroup.DeviceRule {
	return node(major, minor, "r", fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
}
