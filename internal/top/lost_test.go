package top

import (
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// lineOf is the line of the screen that has a text.
func lineOf(t *testing.T, m *Model, width int, has string) string {
	t.Helper()
	for line := range strings.Lines(m.Frame(width, 50, noon).Text()) {
		if strings.Contains(line, has) {
			return line
		}
	}
	t.Fatalf("no line has %q:\n%s", has, m.Frame(width, 50, noon).Text())
	return ""
}

// Nothing of a GPU that does not answer is shown as measured: not its memory, sensors and utilization, now or in the history, and
// not those of its instances.
func TestAGPUThatDoesNotAnswer(t *testing.T) {
	for _, state := range []string{"lost", "stuck", "unreadable", "missing", "parked", "no-driver", "mismatch", "held"} {
		t.Run(state, func(t *testing.T) {
			r := lab()
			for _, i := range []int{0, 2} {
				g := &r.Status.GPUs[i]
				g.State = state
				g.Memory.Used = 0
			}
			r.Status.GPUs[0].MIG.Instances = r.Status.GPUs[0].MIG.Instances[1:]
			m := &Model{View: GPUs}
			m.Take(r)
			m.Take(r)
			for _, has := range []string{"  2 timeslice", "└1g.5gb@4"} {
				line := lineOf(t, m, 200, has)
				if !strings.Contains(line, map[bool]string{true: " 0/", false: " -/"}[state == "held"]) {
					t.Errorf("the memory: %s", line)
				}
				if measured := strings.ContainsAny(line, "▁█°%W"); measured != (state == "held" && strings.Contains(has, "slice")) {
					t.Errorf("something is shown as measured: %v: %s", measured, line)
				}
			}
		})
	}
}

// A lease whose GPU is lost does not just run.
func TestALeaseOnALostGPU(t *testing.T) {
	for name, c := range map[string]struct {
		lost []api.LostGPU
		want string
	}{
		"lost":          {[]api.LostGPU{{GPU: "GPU-3", Since: noon, Reason: "XID 79"}}, "GPU lost"},
		"answers again": {[]api.LostGPU{{GPU: "GPU-3", Since: noon, Until: new(noon.Add(time.Second))}}, "running"},
	} {
		t.Run(name, func(t *testing.T) {
			r := lab()
			r.Status.Leases[4].LostGPUs = c.lost
			m := &Model{}
			m.Take(r)
			if line := lineOf(t, m, 200, "geology-big-m4n5"); !strings.Contains(line, " "+c.want+" ") {
				t.Errorf("it does not show %q: %s", c.want, line)
			}
		})
	}
}

// BUSY of a lease is not what its instance did before, nor what others do in it.
func TestBusyOfALeaseInAnInstance(t *testing.T) {
	r := lab()
	m := &Model{}
	m.Take(r)
	if line := lineOf(t, m, 200, "vision-train-x7k2 alice"); !strings.Contains(line, " 63% ") {
		t.Errorf("the use of the lease is not shown: %s", line)
	}
	r.Status.Leases[0].Use = nil
	m.Take(r)
	if line := lineOf(t, m, 200, "vision-train-x7k2 alice"); strings.Contains(line, "%") {
		t.Errorf("what the instance did is shown of a lease that did not have it so long: %s", line)
	}
}

// XIDs are shown where there is room, and only where there are any.
func TestXIDsOfLeases(t *testing.T) {
	m := &Model{}
	m.Take(lab())
	if line := lineOf(t, m, 200, "geology-dev-a1b2"); !strings.Contains(line, " 31×3, 43? ") {
		t.Errorf("XIDs are not shown: %s", line)
	}
	if head := lineOf(t, m, 120, "LEASE "); strings.Contains(head, "XID") {
		t.Errorf("a narrow screen has the column: %s", head)
	}
	r := lab()
	r.Status.Leases[3].XIDs = nil
	m.Take(r)
	if head := lineOf(t, m, 200, "LEASE "); strings.Contains(head, "XID") {
		t.Errorf("a column without values is shown: %s", head)
	}
}
