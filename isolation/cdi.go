package isolation

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/gpushare/cgroup"
)

// CDIKind is the CDI kind of the devices of gpushare. CDI requires a domain name as the vendor. nvidia.com belongs to
// NVIDIA's own toolkit.
const CDIKind = "gpushare.dev/gpu"

// Container is the input for the CDI spec of a grant or of one lease, and for the options of a container inside of a lease.
type Container struct {
	Device      string              // its name: of a grant, or the id of one lease
	Rules       []cgroup.DeviceRule // the device nodes of one lease of the grant
	Environment map[string]string
	Libraries   []Library
	Vendor      *Vendor // instead of Libraries, if not nil
	HostRoot    string  // the root of the nodes on the host: "/" except for a virtual node
}

// Vendor has what a container needs of the driver besides its devices, as the CDI file of NVIDIA's toolkit says.
type Vendor struct {
	Mounts []*specs.Mount // the libraries, the firmware, the socket of nvidia-persistenced
	Hooks  []*specs.Hook  // they create links and update the linker's cache
}

// CDIDevice is the name of the device of a grant. Names of tenants and grants contain no dot, so it is no id of a lease.
func CDIDevice(tenant, grant string) string { return tenant + "." + grant }

// CDIVolume is where GPU images of every distribution search the driver's libraries.
const CDIVolume = "/usr/local/nvidia/lib64"

// CDI returns a CDI spec: its device nodes, its environment, and the driver's libraries, which must match the
// kernel module and so cannot be in an image. Without the vendor's edits it uses no hooks. The version is the lowest that
// supports this, because a runtime refuses a version above its own.
func CDI(c Container) (*specs.Spec, error) {
	s := &specs.Spec{Kind: CDIKind}
	edits := specs.ContainerEdits{Env: environ(c.Environment)}
	for _, r := range c.Rules {
		n := &specs.DeviceNode{Path: r.Name, Type: string(r.Type), Major: int64(r.Major), Minor: int64(r.Minor), Permissions: r.Access}
		if c.HostRoot != "" && c.HostRoot != "/" {
			n.HostPath = filepath.Join(c.HostRoot, r.Name)
		}
		edits.DeviceNodes = append(edits.DeviceNodes, n)
	}
	if c.Vendor != nil {
		edits.Mounts, edits.Hooks = slices.Clone(c.Vendor.Mounts), c.Vendor.Hooks
	} else {
		edits.Mounts = libraryMounts(&c)
	}
	if dir := c.Environment[pipeDirectory]; dir != "" {
		edits.Mounts = append(
			edits.Mounts,
			&specs.Mount{HostPath: dir, ContainerPath: dir, Options: []string{"rw", "nosuid", "nodev", "bind"}},
		)
	}
	s.Devices = []specs.Device{{Name: c.Device, ContainerEdits: edits}}
	var err error
	s.Version, err = specs.MinimumRequiredVersion(s)
	return s, err
}

// libraryMounts mounts each library with its file name and with its soname, at its path on the host and in CDIVolume.
func libraryMounts(c *Container) []*specs.Mount {
	var out []*specs.Mount
	for _, l := range c.Libraries {
		host := filepath.Join(c.HostRoot, l.Path)
		at := []string{l.Path}
		if l.Soname != "" {
			at = append(at, filepath.Join(filepath.Dir(l.Path), l.Soname), filepath.Join(CDIVolume, l.Soname))
		}
		for _, path := range slices.Compact(at) {
			out = append(out, &specs.Mount{HostPath: host, ContainerPath: path, Options: []string{"ro", "nosuid", "nodev", "bind"}})
		}
	}
	return out
}

// environ is sorted, so that an unchanged environment gives an unchanged spec. With NVIDIA_VISIBLE_DEVICES=void
// the hook of NVIDIA, where it is installed, adds nothing. Otherwise it would open every GPU.
func environ(set map[string]string) []string {
	out := []string{"NVIDIA_VISIBLE_DEVICES=void"}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		if k != "NVIDIA_VISIBLE_DEVICES" {
			out = append(out, k+"="+set[k])
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
