package node

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// limitedByDefault is a spec that limits GPU memory and does not say what happens above it.
const limitedByDefault = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: timeslice}
tenants:
  - name: red
    overuse: {grace: 2s}
    grants:
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}, gpus: {index: 2}}
`

// A limit of GPU memory that is written is one: a command that uses more is stopped, unless the spec says otherwise.
func TestGPUMemoryIsLimitedByDefault(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, limitedByDefault)
	within, _ := begin(t, n, "red", "part", n.Burn("--memory", "4GiB", "--hold")...)
	within.Stop()
	job, id := begin(t, n, "red", "part", n.Burn("--memory", "10GiB", "--hold")...)
	awaitEnd(t, job)
	if job.Code() == 0 {
		t.Errorf("10 GiB in a grant of 8 GiB end with 0: %s", job.Output())
	}
	if r := n.CLI(soon(t), "lease", "list", "--all"); !strings.Contains(r.Out, id) || !strings.Contains(r.Out, "GPU memory") {
		t.Errorf("why it ended is not shown:\n%s", r.Out)
	}
}

// An amount of GPU memory that nothing enforces is marked wherever it is shown, and one that is enforced is not.
func TestReportedGPUMemoryIsMarked(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	for _, c := range []struct {
		name, overuse string
		qualified     bool
	}{
		{"written to be reported", "{gpu_memory: notify}", true},
		{"by default", "{grace: 5s}", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			apply(t, n, replaced(t, limitedByDefault, "{grace: 2s}", c.overuse))
			job, id := begin(t, n, "red", "part", n.Burn("--memory", "4GiB", "--hold")...)
			awaitStatus(t, n, "its memory is not seen", func(s *api.Status) bool {
				l := leaseByID(s, id)
				return l != nil && l.GPUMemory != nil && l.GPUMemory.Used > 3<<30
			})
			granted := n.CLI(soon(t), "run", "-t", "red", "--grant", "part", "--", "true")
			shown := map[string]string{"run": granted.Err}
			for _, args := range [][]string{
				{"status"},
				{"status", "-o", "wide"},
				{"top", "-b", "-n", "1", "--by", "lease"},
				{"lease", "list"},
				{"lease", "show", id},
				{"tenant", "list"},
				{"tenant", "show", "red"},
				{"explain", "red"},
				{"explain", id},
			} {
				r := n.CLI(soon(t), args...)
				if r.Code != 0 {
					t.Errorf("%v exits with %d: %s", args, r.Code, r.Err)
				}
				shown[strings.Join(args, " ")] = r.Out
			}
			for command, out := range shown {
				amounts := 0
				for line := range strings.Lines(out) {
					if !strings.Contains(line, "8 GiB") || strings.Contains(line, "38 GiB") {
						continue
					}
					amounts++
					if strings.Contains(line, "8 GiB (reported only)") != c.qualified &&
						strings.Contains(line, "8 GiB of GPU memory (reported only)") != c.qualified {
						t.Errorf("%s: %s", command, line)
					}
				}
				if amounts == 0 && (c.qualified || command != "run") {
					t.Errorf("%s has no amount:\n%s", command, out)
				}
			}
			job.Stop()
		})
	}
}

// A host whose spec relied on the earlier default: after the upgrade a condition names the tenants, each live lease has a notice, and a
// lease that used more than its grant all the time has the whole grace before it is stopped. An accepted spec ends the condition.
func TestUpgradeFromADefaultThatOnlyReported(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, replaced(t, limitedByDefault, "grace: 2s", "gpu_memory: notify, grace: 2s"))
	job, id := begin(t, n, "red", "part", n.Burn("--memory", "10GiB", "--hold")...)
	awaitStatus(t, n, "its memory is not seen", func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Stage == "over"
	})
	n.StopDaemon()
	asEarlier(t, n)
	began := time.Now()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	s := awaitStatus(t, n, "the upgrade is not reported", func(s *api.Status) bool {
		l := leaseByID(s, id)
		return hasCondition(s, "default", "overuse.gpu_memory of tenant red is not written") && (l == nil || len(l.Notices) > 0)
	})
	if l := leaseByID(
		s,
		id,
	); l != nil &&
		!strings.Contains(strings.Join(l.Notices, "\n"), "overuse.gpu_memory of tenant red is kill now, it was notify") {
		t.Errorf("its notices are %q", l.Notices)
	}
	awaitEnd(t, job)
	if elapsed := time.Since(began); elapsed < 2*time.Second {
		t.Errorf("it was ended %s after the start of the daemon, its grace is 2s", elapsed)
	}
	if r := n.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "its default is kill since this version (notify before)") {
		t.Errorf("doctor does not report it:\n%s", r.Out)
	}
	apply(t, n, replaced(t, limitedByDefault, "grace: 2s", "gpu_memory: kill, grace: 2s"))
	if s := status(t, n); hasCondition(s, "default", "overuse.gpu_memory of tenant red is not written") {
		t.Errorf("it is reported after a spec was accepted: %+v", s.Node.Conditions)
	}
}

// asEarlier writes the accepted spec as a version before the record of the default had it, without the key.
func asEarlier(t *testing.T, n *harness.Node) {
	t.Helper()
	st, _, err := store.Open(filepath.Join(n.Dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	err = st.Update(func(s *store.State) error {
		s.Accepted.Overuse = ""
		s.Accepted.YAML = replaced(t, s.Accepted.YAML, "gpu_memory: notify, ", "")
		s.Revisions[len(s.Revisions)-1].YAML = s.Accepted.YAML
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
