package daemon

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/test/scenarios"
)

// A check and an apply say which grants do not fit together, and refuse nothing.
func TestOversubscribedGrantsAreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
		w.startDaemon()
		const spec = "version: v1\nnode: {enforce: on}\ngpus:\n  - select: {index: 0}\n    mode: timeslice\ntenants:\n" +
			"  - name: red\n    grants: [{name: g, timeslice: {share: 90%, gpu_memory: 30GiB}}]\n" +
			"  - name: blue\n    grants: [{name: g, timeslice: {share: 70%, gpu_memory: 24GiB}}]\n"
		for _, query := range []string{"?check=true", ""} {
			out, _, refusal := w.apply(spec, query)
			if refusal != nil {
				t.Fatal(refusal)
			}
			said := strings.Join(out.Plan.Warnings, "\n")
			for _, want := range []string{"need 160% together; it has 100% (red/g 90%, blue/g 70%)", "need 54 GiB together; it has "} {
				if !strings.Contains(said, want) {
					t.Errorf("%q does not say %q: %s", query, want, said)
				}
			}
		}
	})
}
