package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
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
	enumeration.Long(t)
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

// nodesOnDemand is a node on which only nvidia-modprobe loads modules and creates device nodes.
const nodesOnDemand = quick + "device_nodes: helper\nlate_modules: [nvidia-uvm, nvidia-drm]\n"

// failingHelper puts a program in the place of the vendor's one that makes nothing, and returns what puts it back.
func failingHelper(t *testing.T, n *harness.Node) (restore func()) {
	t.Helper()
	withoutHelper(t, n)
	path := filepath.Join(n.Root(), "usr/bin/nvidia-modprobe")
	if err := programs.Write(path, "#!/bin/sh\nexit 1\n"); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		withoutHelper(t, n)
		if err := os.Symlink(filepath.Join(n.Bin, "gpusim"), path); err != nil {
			t.Fatal(err)
		}
	}
}

// Before the first lease the module of unified memory is loaded, and every device node is created that a lease needs.
func TestMissingDeviceNodesAreCreated(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testing.T, *harness.Node){
		"by the vendor's program": func(*testing.T, *harness.Node) {},
		"without it": func(t *testing.T, n *harness.Node) {
			if os.Geteuid() != 0 {
				t.Skip("needs root: only the vendor's program is setuid")
			}
			withoutHelper(t, n)
			loadModule(t, n, "nvidia-uvm")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nodesOnDemand)
			if err := n.Start(soon(t)); err != nil {
				t.Fatal(err)
			}
			prepare(t, n)
			apply(t, n, shared)
			command := `cd ` + n.Root() + `/dev; test -e nvidia-uvm && test "$(ls nvidia-caps | wc -l)" -ge 2`
			if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "sh", "-c", command); r.Code != 0 {
				t.Errorf("%s fails in a lease with %d: %s", command, r.Code, r.Err)
			}
			if n.RealNodes {
				awaitStatus(t, n, "the lease did not end", func(s *api.Status) bool { return len(s.Leases) == 0 })
				if got := opened(t, n, "cut"); len(got) != 5 {
					t.Errorf("the lease opens %v, want 5 nodes", got)
				}
			}
			for _, c := range status(t, n).Node.Conditions {
				if c.Kind == "device-nodes" {
					t.Errorf("condition %+v", c)
				}
			}
		})
	}
}

// A device node that cannot be made is named with the command that makes it, and a lease that needs it is refused: its program would
// fail. The command is right.
func TestMissingDeviceNodesAreNamed(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, nodesOnDemand)
	restore := failingHelper(t, n)
	apply(t, n, shared)
	s := awaitStatus(t, n, "the missing nodes are not named", func(s *api.Status) bool {
		found := 0
		for _, c := range s.Node.Conditions {
			if c.Kind == "device-nodes" && strings.Contains(c.Hint, "'nvidia-modprobe -") {
				found++
			}
		}
		return found == 2 // the module, and the capabilities
	})
	run := func() harness.Result { return n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "true") }
	if r := run(); r.Code == 0 || !strings.Contains(r.Err, "/dev/nvidia-caps/nvidia-cap") ||
		!strings.Contains(r.Err, "nvidia-modprobe -f ") {
		t.Fatalf("a lease whose nodes are missing: %d %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "nvidia-modprobe -u -c 0") || !strings.Contains(r.Out, "nvidia-cap") {
		t.Errorf("doctor: %s", r.Out)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 0 ||
		!strings.Contains(r.Err, "nvidia-uvm") {
		t.Errorf("a lease of a whole GPU without unified memory: %d %s", r.Code, r.Err)
	}
	restore()
	for range 16 { // Each condition names one command of several.
		var argv []string
		for _, c := range s.Node.Conditions {
			if _, rest, ok := strings.Cut(c.Hint, "'nvidia-modprobe "); ok && c.Kind == "device-nodes" {
				command, _, _ := strings.Cut(rest, "'")
				argv = strings.Fields(command)
			}
		}
		if argv == nil {
			break
		}
		if out, err := exec.CommandContext(
			soon(t),
			filepath.Join(n.Root(), "usr/bin/nvidia-modprobe"),
			argv...).CombinedOutput(); err != nil {
			t.Fatalf("nvidia-modprobe %v: %v %s", argv, err, out)
		}
		was := fmt.Sprint(s.Node.Conditions)
		s = awaitStatus(t, n, "the condition did not follow", func(s *api.Status) bool { return fmt.Sprint(s.Node.Conditions) != was })
	}
	if r := run(); r.Code != 0 {
		t.Errorf("a lease after the commands of the hints: %d %s", r.Code, r.Err)
	}
}
