package isolation

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
)

// Target is a device that may be opened: a whole GPU, one MIG instance, or one compute instance of that.
type Target struct {
	GPU      gpu.UUID
	Instance *gpu.Placement // nil: the whole GPU
	Compute  gpu.UUID       // the MIG device of the compute instance; empty: all compute instances
	Graphics bool           // the instance has graphics (+gfx)
}

// Hardware is the GPUs and the host as observed.
type Hardware struct {
	GPUs []gpu.Snapshot
	Host Host
}

// gpuMajor is the major of /dev/nvidia<minor> and /dev/nvidiactl (Documentation/admin-guide/devices.txt; the module
// requests this one and no other).
const gpuMajor = 195

// controlMinor is the minor of /dev/nvidiactl.
const controlMinor = 255

// OpensGPU reports whether rules allow the GPU with this minor.
func OpensGPU(rules []cgroup.DeviceRule, minor int) bool {
	return slices.ContainsFunc(rules, func(r cgroup.DeviceRule) bool {
		return r.Type == 'c' && r.Major == gpuMajor && int(r.Minor) == minor && minor != controlMinor
	})
}

// OfDriver reports whether a rule is for a node of the driver, and not for one of a class of devices.
func OfDriver(host *Host, r cgroup.DeviceRule) bool {
	if r.Type != 'c' {
		return false
	}
	if r.Major == gpuMajor {
		return true
	}
	for _, name := range []string{uvmDriver, capsDriver} {
		if major, ok := host.Majors[name]; ok && major == r.Major {
			return true
		}
	}
	return false
}

// gpu finds a GPU as observed.
func (h *Hardware) gpu(id gpu.UUID) (*gpu.Snapshot, bool) {
	for i := range h.GPUs {
		if h.GPUs[i].Identity.UUID == id {
			return &h.GPUs[i], true
		}
	}
	return nil, false
}

// Rules returns exactly the devices that a process must open to use the targets and the classes of devices, sorted. It does
// not include nvidia-uvm-tools, nvidia-modeset, and the capabilities that configure and monitor MIG. It fails for a target
// that was not observed. missing reports what does not exist now, like a module that is not loaded.
func Rules(h *Hardware, targets []Target, classes []string) (rules []cgroup.DeviceRule, missing []string, err error) {
	if len(targets) > 0 {
		rules = append(rules, node(gpuMajor, controlMinor, "rw", "/dev/nvidiactl"))
		if major, ok := h.Host.Majors[uvmDriver]; ok {
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
		if c == ClassDRI {
			found, lacking := driRules(h, targets)
			rules, missing = append(rules, found...), append(missing, lacking...)
			continue
		}
		found := h.Host.Classes[c]
		if len(found) == 0 {
			missing = append(missing, fmt.Sprintf("devices of class %s: none found", c))
		}
		rules = append(rules, found...)
	}
	return cgroup.SortRules(rules), missing, nil
}

// targetRules are the rules of one target, without those that all targets share.
func targetRules(h *Hardware, t Target) ([]cgroup.DeviceRule, error) {
	d, ok := h.gpu(t.GPU)
	if !ok {
		return nil, fmt.Errorf("cannot allow GPU %s: not found", t.GPU)
	}
	minor := d.Identity.Minor
	if minor < 0 || minor == controlMinor {
		return nil, fmt.Errorf("cannot allow GPU %s: its device node is unknown", t.GPU)
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
		return nil, fmt.Errorf("cannot allow %s: not found", at)
	}
	in := &d.Instances[i]
	if len(in.Compute) == 0 {
		return nil, fmt.Errorf("cannot allow %s: it has no compute instance", at)
	}
	major, ok := h.Host.Majors[capsDriver]
	if !ok {
		return nil, fmt.Errorf("cannot allow %s: the driver has no capability devices", at)
	}
	errUnknown := errors.New("the driver does not report the minors of its capabilities")
	n, ok := h.Host.Caps.GI(minor, in.ID)
	if !ok {
		return nil, fmt.Errorf("cannot allow %s: %w", at, errUnknown)
	}
	rules = append(rules, capability(major, n))
	if t.Compute != "" && !slices.ContainsFunc(in.Compute, func(c gpu.ComputeInstance) bool { return c.UUID == t.Compute }) {
		return nil, fmt.Errorf("cannot allow %s: its compute instance %s was not found", at, t.Compute)
	}
	for _, c := range in.Compute {
		if t.Compute != "" && c.UUID != t.Compute {
			continue
		}
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

// capability is the rule of a capability's node, which is only read.
func capability(major, minor uint32) cgroup.DeviceRule {
	return node(major, minor, "r", fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
}
