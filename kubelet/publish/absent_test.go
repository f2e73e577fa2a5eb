package publish_test

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// A GPU of which nothing is offered has a reason, each another one.
func TestGPUsWithoutADevice(t *testing.T) {
	t.Parallel()
	b, err := board.Find("a100-80")
	if err != nil {
		t.Fatal(err)
	}
	only := func(n *publish.Node, g api.GrantSpec) { n.Tenant.Grants = []api.GrantSpec{g} }
	for name, c := range map[string]struct {
		change func(n *publish.Node)
		gpu    int
		why    string
	}{
		"no tenant":          {func(n *publish.Node) { n.Tenant = nil }, 0, "has no tenant for Kubernetes"},
		"observed":           {func(n *publish.Node) { n.Status.Node.Enforce, n.Status.GPUs[2].Mode = "observe", api.ModeUnmanaged }, 2, "only observes"},
		"of another engine":  {func(n *publish.Node) { n.Status.GPUs[2].Owner, n.Status.GPUs[2].Mode = "slurm", api.ModeMPS }, 2, "belongs to slurm"},
		"not in the spec":    {func(n *publish.Node) { n.Status.GPUs[2].Mode = api.ModeUnmanaged }, 2, "the spec does not name it"},
		"of another program": {func(n *publish.Node) { n.Status.GPUs[2].Mode = api.ModeExternal }, 2, "its mode is external"},
		"grants of two": {func(n *publish.Node) {
			only(n, api.GrantSpec{Name: "alone", Exclusive: 2})
		}, 2, "has exclusive: 1"},
		"no grant": {func(n *publish.Node) { only(n, api.GrantSpec{Name: "alone", Exclusive: 1}) }, 1, "with its mode, which is timeslice"},
		"several profiles": {func(n *publish.Node) {
			only(n, api.GrantSpec{Name: "mig0", MIG: "*"})
		}, 0, "may be of several profiles"},
		"it does not answer":        {func(n *publish.Node) { n.MIG.GPUs = nil }, 0, "does not answer"},
		"no instance of the layout": {func(n *publish.Node) { n.Status.GPUs[0].MIG.Dynamic = false }, 0, "no whole instance of its layout"},
	} {
		n := newWorld(t, b, 2).node()
		c.change(n)
		found := false
		for _, a := range publish.Without(n, publish.Offers(n)) {
			if a.Index == c.gpu {
				found = true
				if !strings.Contains(a.Why, c.why) {
					t.Errorf("%s: GPU %d has no device because %q, want %q", name, a.Index, a.Why, c.why)
				}
			}
		}
		if !found {
			t.Errorf("%s: GPU %d has a device", name, c.gpu)
		}
	}
	if n := newWorld(t, b, 2).node(); len(publish.Without(n, publish.Offers(n))) > 0 {
		t.Error("a GPU with devices is among those without")
	}
}
