package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// The XIDs of a lease and the loss of its GPU stand in the lists and in 'lease show'; without them there is no column.
func TestTheErrorsOfALeaseAreShown(t *testing.T) {
	statusOf := func(change func(*api.Status), args ...string) string {
		t.Helper()
		s := labNode()
		change(s)
		r := run(t, routes{"GET /v1/status": s}, "", args...)
		if r.code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, r.code, r.all)
		}
		return r.out
	}
	if out := statusOf(func(*api.Status) {}, "lease", "list"); strings.Contains(out, "XID") {
		t.Errorf("without XIDs:\n%s", out)
	}
	trouble := func(s *api.Status) {
		l := &s.Leases[0]
		l.XIDs = []api.LeaseXID{
			{XID: 94, Meaning: "memory failed", GPU: gpu1, Relation: api.XIDPossible, Count: 1, Last: noon},
			{XID: 31, Meaning: "a program used an address", GPU: gpu1, Relation: api.XIDCaused, Count: 3, Last: noon},
		}
		l.LostGPUs = []api.LostGPU{
			{GPU: gpu1, Since: noon, Until: &noon, Reason: "it was away"},
			{GPU: gpu1, Since: noon, Reason: "XID 79 (the GPU is lost)"},
		}
	}
	lines := strings.Split(statusOf(trouble, "lease", "list"), "\n")
	i := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "vision-3kq6") })
	if i < 0 || !strings.Contains(lines[0], "XID") || !strings.Contains(lines[i], "31×3, 94?") ||
		!strings.Contains(lines[i], "  GPU lost  ") {
		t.Errorf("lease list:\n%s", strings.Join(lines, "\n"))
	}
	if out := statusOf(trouble, "status"); !strings.Contains(out, "  GPU lost  ") {
		t.Errorf("status:\n%s", out)
	}
	out := statusOf(trouble, "lease", "show", "vision-3kq6")
	at := noon.Local().Format("2006-01-02 15:04:05")
	for _, want := range []string{
		"running, GPU lost",
		"lost       GPU 1 from " + at + " to " + at + ": it was away\n",
		"lost       GPU 1 since " + at + ": XID 79 (the GPU is lost)\n",
		"error      XID 94 (memory failed), of this lease or of another one on the GPU at " + at + ", on GPU 1\n",
		"error      XID 31 (a program used an address), 3 times at " + at + ", on GPU 1\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("lease show lacks %q:\n%s", want, out)
		}
	}
}
