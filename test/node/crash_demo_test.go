package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/enumeration"
)

// board is the node of the demo without its latencies.
const board = `driver: "580"
gpus:
  - {model: A100-SXM4-40GB, count: 2, mig: true}
  - {model: A100-SXM4-40GB, count: 6}
`

// idle is the state before the plan of the demo: each partitioned GPU has one instance, so that the plan also destroys some.
const idle = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [0, 1]}, mode: mig, mig: {layout: [7g.40gb]}}
`

// The daemon is killed at every fault point while it runs the plan of the demo.
func TestDaemonKilledInTheDemosPlan(t *testing.T) {
	enumeration.Long(t)
	b, err := os.ReadFile(filepath.Join(root, "examples/dgx-a100.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// Its users do not exist on this host, and no cgroup is that of logins, which would add conditions.
	spec := strings.NewReplacer("[alice]", "[root]", "[bob]", "[root]", "[carol]", "[root]", "logins: closed", "logins: open").
		Replace(string(b))
	binaries := buildWithFaults(t)
	workers := 4
	if enumeration.Sampled() {
		workers = 2 // Each worker has its own node, whose start is half of the work with few kills.
	}
	for worker := range workers {
		t.Run(fmt.Sprintf("worker-%d", worker), func(t *testing.T) {
			t.Parallel()
			stride := workers * enumeration.Stride(18)
			n := newNode(t, board)
			n.Bin = binaries
			if err := n.Start(soon(t)); err != nil {
				t.Fatal(err)
			}
			apply(t, n, spec)
			desired := withoutPlaces(truth(t, n))
			kills := 0
			for k := worker + 1; !t.Failed(); k += stride {
				apply(t, n, idle)
				if !killedAt(t, n, k, spec, desired) {
					break
				}
				kills++
			}
			if kills == 0 {
				t.Error("no kill happened")
			}
			t.Logf("%d kills", kills)
		})
	}
}
