package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// podmanOptions are the options that a lease prints, by name: the host's path and what the container gets of it.
type podmanOptions struct {
	plain   []string          // without a path
	devices map[string]string // by the path in the container
	volumes map[string]string
	env     []string
}

// podmanIn reads the options of a container in a new lease.
func podmanIn(t *testing.T, n *harness.Node, tenant, grant string) podmanOptions {
	t.Helper()
	r := n.CLI(soon(t), "run", "-q", "-t", tenant, "--grant", grant, "--", "gpushare", "env", "--podman", "--json")
	var e api.Environment
	if err := json.Unmarshal([]byte(r.Out), &e); err != nil || r.Code != 0 {
		t.Fatalf("env --podman in %s exits with %d: %v: %s%s", grant, r.Code, err, r.Out, r.Err)
	}
	out := podmanOptions{devices: map[string]string{}, volumes: map[string]string{}}
	for _, o := range e.Podman {
		name, value, _ := strings.Cut(o, "=")
		host, rest, _ := strings.Cut(value, ":")
		switch name {
		case "--device":
			out.devices[rest] = host
		case "--volume":
			out.volumes[rest] = host
		case "--env":
			out.env = append(out.env, value)
		default:
			out.plain = append(out.plain, o)
		}
	}
	for _, paths := range []map[string]string{out.devices, out.volumes} {
		for at, host := range paths {
			if _, err := os.Stat(host); err != nil {
				t.Errorf("%s, for %s in a container of %s, is not there: %v", host, at, grant, err)
			}
		}
	}
	if !slices.Contains(out.env, "GPUSHARE_LEASE="+e.Lease) || !slices.Contains(out.env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("a container of %s in lease %s has the environment %v", grant, e.Lease, out.env)
	}
	return out
}

// opens are the paths of the nodes, without the capabilities of MIG, and the number of those.
func (o *podmanOptions) opens() (nodes []string, capabilities int) {
	for at := range o.devices {
		switch path, access, _ := strings.Cut(at, ":"); {
		case strings.HasPrefix(path, "/dev/nvidia-caps/") && access == "r":
			capabilities++
		default:
			nodes = append(nodes, path)
		}
	}
	slices.Sort(nodes)
	return nodes, capabilities
}

// Inside of a lease the command prints what a container there needs, and nothing of another GPU.
func TestPodmanOptionsOfALease(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	s := status(t, n)
	instance := ""
	for _, in := range s.GPUs[0].MIG.Instances {
		if in.Profile == "3g.20gb" {
			instance = in.UUIDs[0]
		}
	}
	for _, c := range []struct {
		grant, node, visible string
		capabilities         int
	}{{"cut", "/dev/nvidia0", instance, 2}, {"part", "/dev/nvidia2", s.GPUs[2].UUID, 0}, {"whole", "/dev/nvidia3", s.GPUs[3].UUID, 0}} {
		o := podmanIn(t, n, "red", c.grant)
		nodes, capabilities := o.opens()
		if want := []string{"/dev/nvidia-uvm", c.node, "/dev/nvidiactl"}; !slices.Equal(nodes, want) || capabilities != c.capabilities {
			t.Errorf("a container of %s gets %v and %d capabilities, want %v and %d", c.grant, nodes, capabilities, want, c.capabilities)
		}
		if !slices.Equal(o.plain, []string{"--cgroups=disabled"}) {
			t.Errorf("the options of %s are %v", c.grant, o.plain)
		}
		// All that the virtual node has of the driver's files.
		if want := filepath.Join(n.Root(), "usr/bin/nvidia-smi"); o.volumes["/usr/bin/nvidia-smi:ro"] != want {
			t.Errorf("a container of %s gets the files %v, want %s", c.grant, o.volumes, want)
		}
		if !slices.Contains(o.env, "CUDA_VISIBLE_DEVICES="+c.visible) {
			t.Errorf("the environment of %s is %v, want device %s", c.grant, o.env, c.visible)
		}
	}
	r := n.CLI(soon(t), "env", "--podman")
	if r.Code != api.ExitFailed || r.Out != "" ||
		!strings.Contains(r.Err, "gpushare run -- sh -c 'podman run --rm $(gpushare env --podman) IMAGE'") {
		t.Errorf("outside of a lease it exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// A container in a lease of MPS also gets the tenants' directory of its control daemon, and the host's IPC. A CDI device is refused.
func TestPodmanOptionsOfMPS(t *testing.T) {
	t.Parallel()
	n := start(t, sharedNode("580"))
	apply(t, n, sharedSpec)
	o := podmanIn(t, n, "red", "small")
	dirs, err := filepath.Glob(filepath.Join(n.Dir, "run/mps/*/t"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("pipe directories %q, %v", dirs, err)
	}
	if o.volumes[dirs[0]] != dirs[0] || !slices.Contains(o.env, "CUDA_MPS_PIPE_DIRECTORY="+dirs[0]) ||
		!slices.Contains(o.env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M") {
		t.Errorf("the control daemon is at %s, and a container gets %v and %v", dirs[0], o.volumes, o.env)
	}
	if !slices.Equal(o.plain, []string{"--cgroups=disabled", "--ipc=host"}) {
		t.Errorf("the options are %v", o.plain)
	}
	for _, more := range [][]string{nil, {"--reserve"}} {
		r := n.CLI(soon(t), append([]string{"env", "--cdi", "-t", "red", "--grant", "small"}, more...)...)
		if r.Code == 0 || !strings.Contains(r.Err, api.RootlessContainer("red", "small")) ||
			len(more) == 0 && !strings.Contains(r.Err, api.NoCDIForMPS) {
			t.Errorf("env --cdi %v of an MPS grant exits with %d: %s%s", more, r.Code, r.Out, r.Err)
		}
	}
}
