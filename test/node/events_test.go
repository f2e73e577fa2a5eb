package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

// A change of a layout is a few events, however many instances it has: the driver reports each of them, and what it reports of a change
// that is over is what is left.
func TestOneChangeIsFewEvents(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	spec := func(layout string) string {
		return "version: v1\nnode: {enforce: on}\ngpus:\n" + fmt.Sprintf(
			"  - {select: {index: [0, 1]}, mode: mig, mig: {layout: [%s]}}\n", layout,
		)
	}
	apply(t, n, spec(strings.Repeat("1g.5gb, ", 6)+"1g.5gb"))
	apply(t, n, spec("3g.20gb, 2g.10gb")) // It removes 14 instances and creates 4.
	kinds := map[string]int{}
	if err := n.Client().EventsBetween(soon(t), "1h", "", func(e api.Event) { kinds[e.Kind]++ }); err != nil {
		t.Fatal(err)
	}
	if kinds["spec.accepted"] != 2 || kinds["change.done"] != 2 || kinds["gpu.mig-config"] > 4 {
		t.Errorf("two changes of two GPUs with 32 instances are these events: %v", kinds)
	}
}
