package node

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// What is open on a node that enforces is in the doctor: a warning where the administrator wrote it so, a failure where the spec
// promises otherwise.
func TestDoctorSaysWhatIsOpen(t *testing.T) {
	t.Parallel()
	n := start(t, quick) // Its logins are in no cgroup that is known.
	closed := replaced(t, limitedByDefault, "{enforce: on}", "{enforce: on, isolation: {logins: closed}}")
	for _, c := range []struct {
		name, spec string
		code       int
		says       []string
		lacks      []string
	}{
		{
			"logins are open by default", limitedByDefault, 0,
			[]string{"warn  logins: have access to managed GPUs, without a lease too: isolation.logins of the spec is open"},
			[]string{"only reported", "\nfail  "},
		},
		{
			"logins should be closed, and no filter is active", closed, api.ExitDegraded,
			[]string{"fail  login-filter: logins have access to managed GPUs: "},
			[]string{"warn  logins", "only reported"},
		},
		{
			"GPU memory is reported because the spec says so", replaced(t, limitedByDefault, "grace: 2s", "gpu_memory: notify"), 0,
			[]string{"warn  GPU memory: of tenant red 8 GiB of grant part is only reported: ", "overuse: {gpu_memory: notify}"},
			[]string{"\nfail  "},
		},
		{"a node that observes", replaced(t, limitedByDefault, "enforce: on", "enforce: observe"), 0, nil, []string{"\nfail  ", "only reported"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			apply(t, n, c.spec)
			if strings.Contains(c.name, "filter") {
				awaitStatus(t, n, "a missing login filter is not reported", func(s *api.Status) bool {
					return hasCondition(s, "login-filter", "have access")
				})
			}
			r := n.CLI(soon(t), "doctor")
			if r.Code != c.code {
				t.Errorf("doctor exits with %d: %s", r.Code, r.Out)
			}
			for _, want := range c.says {
				if !strings.Contains(r.Out, want) {
					t.Errorf("doctor does not say %q:\n%s", want, r.Out)
				}
			}
			for _, never := range c.lacks {
				if strings.Contains(r.Out, never) {
					t.Errorf("doctor says %q:\n%s", never, r.Out)
				}
			}
		})
	}
}

// A lease in place is never frozen: a spec that freezes leases above their GPU memory promises more than there is for it.
func TestDoctorFailsWhereFreezingIsPromised(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: leases of an ordinary user are never frozen, attached or not")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, replaced(t, limitedByDefault, "grace: 2s", "gpu_memory: freeze"))
	if r := n.CLI(soon(t), "doctor"); r.Code != 0 || strings.Contains(r.Out, "only reported") {
		t.Errorf("doctor without leases exits with %d:\n%s", r.Code, r.Out)
	}
	outside := startOutside(t, n, 0, "sleep", "60")
	id := attach(t, n, "-t", "red", "--grant", "part", "--pid", strconv.Itoa(outside.pid()))
	r := n.CLI(soon(t), "doctor")
	want := "fail  GPU memory: 8 GiB of lease " + id + " is only reported: it is only sampled and reported: the lease cannot be frozen"
	if r.Code != api.ExitDegraded || !strings.Contains(r.Out, want) {
		t.Errorf("doctor exits with %d and does not say %q:\n%s", r.Code, want, r.Out)
	}
}
