package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/harness"
)

// withoutHelper removes the vendor's program that loads modules and makes device nodes.
func withoutHelper(t *testing.T, n *harness.Node) {
	t.Helper()
	if err := os.Remove(filepath.Join(n.Root(), "usr/bin/nvidia-modprobe")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// What the host gets after the start of a lease is opened by the lease, and by no other.
func TestRunningLeaseOpensWhatTheHostGetsLater(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, late, class, node string
		come                    func(t *testing.T, n *harness.Node)
	}{
		{"unified memory", "nvidia-uvm", "", "nvidia-uvm", func(t *testing.T, n *harness.Node) { loadModule(t, n, "nvidia-uvm") }},
		{"graphics", "nvidia-drm", "dri", "dri/renderD*", func(t *testing.T, n *harness.Node) { loadModule(t, n, "nvidia-drm") }},
		{"rdma", "nvidia-drm", "rdma", "infiniband/uverbs0", func(t *testing.T, n *harness.Node) {
			dir := filepath.Join(n.Root(), "dev/infiniband")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mknod(filepath.Join(dir, "uverbs0"), unix.S_IFCHR|0o666, int(unix.Mkdev(231, 192))); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := startWithNodes(t, quick+"late_modules: ["+tt.late+"]\n", func(spec string) string {
				if tt.class == "" {
					return spec
				}
				return replaced(t, spec, "  - name: red\n", "  - name: red\n    devices: ["+tt.class+"]\n")
			})
			script := fmt.Sprintf(`'cd %s/dev; while :; do for f in %s; do
				if [ ! -c $f ]; then continue; fi
				case $( (exec 3<$f) 2>&1) in *permitted*) ;; *) echo opened; exec sleep 600;; esac
			done; sleep 0.05; done'`, n.Root(), tt.node)
			job, _ := begin(t, n, "red", "whole", "sh", "-c", script)
			tt.come(t, n)
			if err := job.AwaitLine(soon(t), "opened"); err != nil {
				t.Fatalf("the lease did not open %s: %v", tt.node, err)
			}
			if r := n.CLI(soon(t), "doctor"); strings.Contains(r.Out, "changed from outside") {
				t.Errorf("what the host got counts as drift: %s", r.Out)
			}
		})
	}
}

func loadModule(t *testing.T, n *harness.Node, name string) {
	t.Helper()
	if err := n.Ctl(soon(t), nil, "module", "load", name); err != nil {
		t.Fatal(err)
	}
}

// startWithNodes starts a node whose device nodes are real and whose vendor's program is missing, or skips the test.
func startWithNodes(t *testing.T, file string, spec func(string) string) *harness.Node {
	t.Helper()
	n := start(t, file)
	if !n.RealNodes {
		t.Skip("needs root, device nodes that can be opened in the temporary directory, and no NVIDIA driver on this host")
	}
	withoutHelper(t, n)
	apply(t, n, spec(shared))
	for _, c := range status(t, n).Node.Conditions {
		if strings.Contains(c.Message, "device rules are not enforced") {
			t.Skipf("needs device programs: %s", c.Message)
		}
	}
	return n
}
