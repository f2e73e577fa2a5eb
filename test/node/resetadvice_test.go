package node

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// quoted are the commands of a hint.
var quoted = regexp.MustCompile(`'((?:gpushare|nvidia-smi) [^']*)'`)

// followHint does what a hint says: a boot, if it begins with that, and its commands in their order. Each must succeed.
func followHint(t *testing.T, n *harness.Node, hint string) {
	t.Helper()
	if strings.HasPrefix(hint, "boot the node") {
		if err := n.Ctl(soon(t), nil, "reboot"); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range quoted.FindAllStringSubmatch(hint, -1) {
		name, rest, _ := strings.Cut(m[1], " ")
		if name == "gpushare" {
			if r := n.CLI(eventually(t), strings.Fields(rest)...); r.Code != 0 {
				t.Fatalf("%s of the hint %q: %d %s%s", m[1], hint, r.Code, r.Out, r.Err)
			}
			continue
		}
		if out, err := exec.CommandContext(
			soon(t),
			filepath.Join(n.Root(), "usr/bin", name),
			strings.Fields(rest)...).CombinedOutput(); err != nil {
			t.Fatalf("%s of the hint %q: %v\n%s", m[1], hint, err, out)
		}
	}
}

// The hint of a GPU that needs a reset leads to one that takes leases: the worker, which has every GPU open, is ended for it.
func TestHintOfAResetLeadsToItsEnd(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for _, tt := range []struct {
		name, kind string
		trouble    []string
	}{
		{"an XID", "health", []string{"xid", "3", "119"}},
		{"rows of memory", "health", []string{"sensor", "3", "rows", "1", "2", "pending"}},
		{"a lost GPU", "health", []string{"fault", "add", "DeviceGetMemoryInfo*", "lose", "--gpu", "3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, quick)
			n.Settings = map[string]string{"converge_interval": "1s"}
			if err := n.Start(soon(t)); err != nil {
				t.Fatal(err)
			}
			apply(t, n, shared)
			if err := n.Ctl(soon(t), nil, tt.trouble...); err != nil {
				t.Fatal(err)
			}
			uuid, hint := status(t, n).GPUs[3].UUID, ""
			find := func(s *api.Status) bool {
				for _, c := range s.Node.Conditions {
					if c.GPU == uuid && c.Kind == tt.kind {
						hint = c.Hint
						return true
					}
				}
				return false
			}
			awaitStatus(t, n, "no condition reports the GPU", find)
			followHint(t, n, hint)
			awaitStatus(t, n, "the condition stays after what its hint says", func(s *api.Status) bool { return !find(s) })
			if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 0 {
				t.Errorf("a lease of the GPU after its reset: %d %s", r.Code, r.Err)
			}
		})
	}
}
