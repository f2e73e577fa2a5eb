package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// openNodes prints the device nodes that the process can open, one on each line.
const openNodes = `cd %s/dev && for n in nvidia[0-9]* nvidiactl nvidia-uvm* nvidia-modeset nvidia-caps/*; do
	if [ ! -c $n ]; then continue; fi
	case $( (exec 3<$n) 2>&1) in *permitted*) ;; *) echo "open $n";; esac
done`

// startWithDeviceNodes starts a node whose GPUs are real device nodes, or skips the test.
func startWithDeviceNodes(t *testing.T) *harness.Node {
	t.Helper()
	n := start(t, quick)
	if !n.RealNodes {
		t.Skip("needs root, device nodes that can be opened in the temporary directory, and no NVIDIA driver on this host")
	}
	apply(t, n, shared)
	for _, c := range status(t, n).Node.Conditions {
		if strings.Contains(c.Message, "device rules are not enforced") {
			t.Skipf("needs device programs: %s", c.Message)
		}
	}
	return n
}

// opened returns the device nodes that a process of a lease can open.
func opened(t *testing.T, n *harness.Node, grant string) []string {
	t.Helper()
	r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", grant, "--", "sh", "-c", fmt.Sprintf(openNodes, n.Root()))
	if r.Code != 0 {
		t.Fatalf("exit code %d: %s", r.Code, r.Err)
	}
	var nodes []string
	for line := range strings.Lines(r.Out) {
		nodes = append(nodes, strings.TrimPrefix(strings.TrimSpace(line), "open "))
	}
	slices.Sort(nodes)
	return nodes
}

// A lease can open the nodes of its own GPU or instance and no others, with any environment.
func TestLeaseOpensItsOwnDevicesOnly(t *testing.T) {
	t.Parallel()
	n := startWithDeviceNodes(t)
	for grant, own := range map[string]string{"part": "nvidia2", "whole": "nvidia3"} {
		if got, want := opened(t, n, grant), []string{"nvidia-uvm", own, "nvidiactl"}; !slices.Equal(got, want) {
			t.Errorf("%s opens %v, want %v", grant, got, want)
		}
	}
	got := opened(t, n, "cut")
	caps := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return filepath.Dir(s) != "nvidia-caps" })
	rest := slices.DeleteFunc(got, func(s string) bool { return slices.Contains(caps, s) })
	if want := []string{"nvidia-uvm", "nvidia0", "nvidiactl"}; !slices.Equal(rest, want) || len(caps) != 2 {
		t.Errorf("the instance's lease opens %v and the capabilities %v, want %v and 2", rest, caps, want)
	}
	awaitStatus(t, n, "leases of commands that ended are still there", func(s *api.Status) bool { return len(s.Leases) == 0 })
}

// The device rules of the slices are read back from the kernel: nothing is corrected or reported as missing.
func TestDeviceRulesAreReadBack(t *testing.T) {
	t.Parallel()
	n := startWithDeviceNodes(t)
	job, id := begin(t, n, "red", "whole", "sleep", "60")
	l := leaseByID(status(t, n), id)
	if !l.Isolation.Devices || slices.ContainsFunc(l.Isolation.NotEnforced, func(s string) bool { return strings.Contains(s, "device") }) {
		t.Errorf("the isolation of the lease: %+v", l.Isolation)
	}
	if r := n.CLIIn(soon(t), shared, "apply", "-f", "-"); r.Code != api.ExitOK || !strings.Contains(r.Out, "no changes") {
		t.Errorf("the second apply: %s%s", r.Out, r.Err)
	}
	job.Stop()
}

// openGraphics prints the graphics nodes that the process can open, one on each line.
const openGraphics = `cd %s/dev/dri && for n in *; do
	case $( (exec 3<$n) 2>&1) in *permitted*) ;; *) echo "open $n";; esac
done`

// Of the instances of a GPU those with graphics open its render node, with the class dri.
func TestInstanceWithGraphicsOpensItsGraphicsNode(t *testing.T) {
	t.Parallel()
	n := start(t, "driver: \"580\"\ngpus: [{model: RTX-PRO-6000-96GB, mig: true}, {model: RTX-PRO-6000-96GB}]\n")
	if !n.RealNodes {
		t.Skip("needs root, device nodes that can be opened in the temporary directory, and no NVIDIA driver on this host")
	}
	apply(t, n, `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [1g.24gb+gfx, 1g.24gb]}}
tenants:
  - name: red
    devices: [dri]
    grants:
      - {name: seen, mig: 1g.24gb+gfx}
      - {name: plain, mig: 1g.24gb}
`)
	own, err := filepath.Glob(filepath.Join(n.Root(), "sys/bus/pci/devices", status(t, n).GPUs[0].PCI, "drm/renderD*"))
	if err != nil || len(own) != 1 {
		t.Fatalf("the render nodes of GPU 0: %v, %v", own, err)
	}
	for grant, want := range map[string]string{"seen": "open " + filepath.Base(own[0]), "plain": ""} {
		r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", grant, "--", "sh", "-c", fmt.Sprintf(openGraphics, n.Root()))
		if got := strings.Join(strings.Fields(r.Out), " "); r.Code != 0 || got != want {
			t.Errorf("%s opens %q, want %q; %d %s", grant, got, want, r.Code, r.Err)
		}
	}
}

// A lease opens the render node of its own GPU with the class dri, and none without. The order of the nodes is not that of the
// GPUs.
func TestLeaseOpensItsOwnGraphicsNodesOnly(t *testing.T) {
	t.Parallel()
	n := startWithDeviceNodes(t)
	graphics := func() string {
		t.Helper()
		r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "sh", "-c", fmt.Sprintf(openGraphics, n.Root()))
		if r.Code != 0 {
			t.Fatalf("exit code %d: %s", r.Code, r.Err)
		}
		return strings.Join(strings.Fields(r.Out), " ")
	}
	if got := graphics(); got != "" {
		t.Errorf("without the class it opens %s", got)
	}
	own, err := filepath.Glob(filepath.Join(n.Root(), "sys/bus/pci/devices", status(t, n).GPUs[3].PCI, "drm/renderD*"))
	if err != nil || len(own) != 1 {
		t.Fatalf("the render nodes of GPU 3: %v, %v", own, err)
	}
	apply(t, n, replaced(t, shared, "  - name: red\n", "  - name: red\n    devices: [dri]\n"))
	if got := graphics(); got != "open "+filepath.Base(own[0]) {
		t.Errorf("with the class it opens %s, want %s", got, filepath.Base(own[0]))
	}
}
