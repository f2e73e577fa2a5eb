package node

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// byName is a layout of names, and byProperties the same one of properties. Their grants are written in the same way.
const (
	byName = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 1g.5gb, 1g.5gb]}}
tenants:
  - name: red
    members: {users: [root]}
    grants: [{name: cut, mig: 1g.5gb, max_leases: 2}]
`
	byProperties = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [{slices: 3, gpu_memory: ">=19GiB"}, {slices: 1}, {slices: 1}]}}
tenants:
  - name: red
    members: {users: [root]}
    grants: [{name: cut, slices: 1, max_leases: 2}]
`
)

// A driver that names profiles differently after an upgrade, by more than the 5 % that are one profile: a layout by properties goes
// on with the same instances and leases, and one of names has a condition with the names of both and with the properties to write.
func TestALayoutByPropertiesAfterADriverUpgrade(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, spec string
		goesOn     bool
	}{{"by properties", byProperties, true}, {"by name", byName, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := start(t, quick)
			apply(t, n, c.spec)
			profiles := func() (out []string) {
				for _, in := range status(t, n).GPUs[0].MIG.Instances {
					out = append(out, in.Profile)
				}
				slices.Sort(out)
				return out
			}
			if got := profiles(); !slices.Equal(got, []string{"1g.5gb", "1g.5gb", "3g.20gb"}) {
				t.Fatalf("the layout is %v", got)
			}
			for _, words := range [][]string{
				{"driver-install", "580.105.08", "1g.5gb=1g.6gb", "3g.20gb=3g.23gb"}, {"driver-reload", "--force"},
			} {
				if err := n.Ctl(soon(t), nil, words...); err != nil {
					t.Fatal(err)
				}
			}
			err := harness.Await(soon(t), 20*time.Millisecond, "the layout is not restored", func() (bool, error) {
				return slices.Equal(profiles(), []string{"1g.6gb", "1g.6gb", "3g.23gb"}), nil
			})
			if err != nil {
				t.Fatalf("%v: %v\n%s", err, profiles(), daemonLog(n))
			}
			awaitChange(t, n)
			if !c.goesOn {
				s := awaitStatus(t, n, "there is no condition for the names", func(s *api.Status) bool {
					return hasCondition(
						s,
						"profile-names",
						"no profile 1g.5gb, which the layout of GPU 0 names; the nearest on GPU 0 is 1g.6gb",
					)
				})
				i := slices.IndexFunc(
					s.Node.Conditions,
					func(c api.Condition) bool { return strings.Contains(c.Message, "profile 3g.20gb") },
				)
				if i < 0 || !strings.Contains(s.Node.Conditions[i].Hint, "'{slices: 3}' instead of a name") {
					t.Errorf("the conditions are %+v", s.Node.Conditions)
				}
				return
			}
			s := awaitStatus(t, n, "the node is not as desired", func(s *api.Status) bool {
				return !slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool {
					return os.Geteuid() == 0 || c.Kind != "not-enforced" // The daemon of an ordinary user enforces less, and says so.
				})
			})
			if got := s.GPUs[0].MIG.Layout; !slices.Equal(got, []string{"3g.23gb", "1g.6gb", "1g.6gb"}) {
				t.Errorf("the desired layout is %v", got)
			}
			for _, args := range [][]string{
				{"plan", "--exit-code"},
				{"run", "-q", "-t", "red", "--grant", "cut", "--", "true"},
			} {
				if r := n.CLI(soon(t), args...); r.Code != 0 {
					t.Errorf("%v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
				}
			}
			if r := n.CLI(soon(t), "status", "--exit-code"); r.Code != 0 && os.Geteuid() == 0 {
				t.Errorf("the status exits with %d: %s%s", r.Code, r.Out, r.Err)
			}
			before := writes(t, n)
			apply(t, n, c.spec)
			if now := writes(t, n); now != before {
				t.Errorf("the same spec makes %d writes", now-before)
			}
			out := n.CLI(soon(t), "get").Out
			if !strings.Contains(out, `- {slices: 3, gpu_memory: ">=19GiB"}`) || strings.Contains(out, "3g.") {
				t.Errorf("the spec is kept as\n%s", out)
			}
		})
	}
}

// A layout by properties that no profile has is refused with what the GPU has, and nothing is changed.
func TestALayoutByPropertiesIsRefused(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, byProperties)
	before := writes(t, n)
	for layout, says := range map[string]string{
		`{slices: 3, gpu_memory: ">=20GiB"}`:                      "3g.20gb has",
		`{slices: 5}`:                                             "5 slices: this GPU does not have it",
		`{slices: 7}, {slices: 1}`:                                "cannot place",
		`{slices: 1, attributes: [gfx]}`:                          "1 slice and gfx",
		`{slices: 1, gpu_memory: ">=9GiB"}, {slices: 4}, 4g.20gb`: "at most 1 of 4g.20gb",
	} {
		spec := replaced(t, byProperties, `{slices: 3, gpu_memory: ">=19GiB"}, {slices: 1}, {slices: 1}`, layout)
		if r := n.CLIIn(soon(t), spec, "apply", "-f", "-"); r.Code == 0 || !strings.Contains(r.Err, says) {
			t.Errorf("%s exits with %d: %s", layout, r.Code, r.Err)
		}
	}
	if now := writes(t, n); now != before {
		t.Errorf("refused specs made %d writes", now-before)
	}
}

// Several instances in one lease are refused in the same words by every way in, and nothing is changed.
func TestSeveralInstancesInALease(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, byName)
	before := writes(t, n)
	several := replaced(t, byName, "mig: 1g.5gb, max_leases: 2", "mig: [1g.5gb, 1g.5gb]")
	for _, args := range [][]string{{"spec", "validate", "-"}, {"apply", "-f", "-"}, {"apply", "--check", "-f", "-"}, {"plan", "-f", "-"}} {
		r := n.CLIIn(soon(t), several, args...)
		if r.Code != api.ExitUsage || !strings.Contains(r.Err, "a lease has one instance") ||
			!strings.Contains(r.Err, "Write mig: 1g.5gb, max_leases: 2, and run each process in a lease of its own") {
			t.Errorf("%v exits with %d: %s", args, r.Code, r.Err)
		}
	}
	if now := writes(t, n); now != before {
		t.Errorf("refused specs made %d writes", now-before)
	}
}
