package isolation

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/gpushare/cgroup"
)

// CDIKind is the kind of our devices in the language of container runtimes. The vendor is a domain's name by their
// rules; that of the hardware's maker is its own toolkit's.
const CDIKind = "gpushare.dev/gpu"

// Container is what a container of a grant gets.
type Container struct {
	Tenant, Grant string
	Rules         []cgroup.DeviceRule // the nodes of one place of the grant
	Environment   map[string]string
	Libraries     []Library
	HostRoot      string // where the nodes are on the host: "/" but for a virtual node
}

// CDIDevice is the device's name: neither a tenant's name nor a grant's has a dot.
func CDIDevice(tenant, grant string) string { return tenant + "." + grant }

// CDIVolume is where images that are made for GPUs look for the driver's libraries, whatever their distribution.
const CDIVolume = "/usr/local/nvidia/lib64"

// CDI describes a grant to container runtimes: its device nodes, its environment, and the driver's libraries, which no
// image can bring along. There are no hooks: each library is mounted under its own name and under the name that programs
// link to, where the host has it and where images look for it.
// Its version is the lowest that has all of that: an older runtime would refuse a higher one for nothing.
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
	for _, l := range c.Libraries {
		host := filepath.Join(c.HostRoot, l.Path)
		at := []string{l.Path}
		if l.Soname != "" {
			at = append(at, filepath.Join(filepath.Dir(l.Path), l.Soname), filepath.Join(CDIVolume, l.Soname))
		}
		for _, path := range slices.Compact(at) {
			edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: host, ContainerPath: path, Options: []string{"ro", "nosuid", "nodev", "bind"}})
		}
	}
	s.Devices = []specs.Device{{Name: CDIDevice(c.Tenant, c.Grant), ContainerEdits: edits}}
	var err error
	s.Version, err = specs.MinimumRequiredVersion(s)
	return s, err
}

// environ is sorted, so that nothing changed reads as nothing changed. NVIDIA's own hook, where it is installed, is told to
// add nothing: it would open every GPU.
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
