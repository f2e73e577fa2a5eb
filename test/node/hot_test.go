package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// While a GPU is hot the lease of the lower priority is paused, as the kernel says, and the other one runs. It continues when the GPU
// is 5 °C below its limit, and no later than 2 s after the daemon was killed; the next daemon pauses it again.
func TestLeasesOfAHotGPUArePaused(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsFreezer(t)
	n := start(t, quick)
	spec := replaced(t, small, "node: {enforce: on}", "node: {enforce: on, health: {temperature: {warn: 85C, do: pause-low}}}")
	apply(t, n, replaced(t, spec, "  - name: red\n", "  - name: red\n    priority: low\n"))
	red, redDir := busy(t, n, "red")
	blue, blueDir := busy(t, n, "blue")
	f := followFreezes(t, map[string]string{"red": redDir, "blue": blueDir})
	f.taking(t, "red")
	events := follow(t, n)
	heat := func(degrees string) {
		t.Helper()
		if err := n.Ctl(soon(t), nil, "sensor", "2", "temperature", degrees); err != nil {
			t.Fatal(err)
		}
	}
	isPaused := func(s *api.Status) bool {
		l := findLease(s, red)
		return l != nil && slices.Equal(l.FrozenFor, []string{"the temperature of its GPU"})
	}
	condition := func(s *api.Status) string {
		for _, c := range s.Node.Conditions {
			if c.Kind == "temperature" && c.GPU == s.GPUs[2].UUID {
				return c.Message
			}
		}
		return ""
	}
	onlyRed := func(when string) {
		t.Helper()
		err := harness.Await(
			soon(t),
			5*time.Millisecond,
			when+" not only red is frozen",
			func() (bool, error) { // Blue may be in its last freeze for a slice.
				return slices.Equal(f.now(), []string{"red"}), nil
			},
		)
		if err != nil {
			t.Fatal(err)
		}
		before := f.counted("blue")
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); { // Several rounds pass.
			<-time.After(5 * time.Millisecond)
			if got := f.now(); !slices.Equal(got, []string{"red"}) {
				t.Fatalf("%s frozen are %v, want only red", when, got)
			}
		}
		if f.counted("blue") != before {
			t.Errorf("%s blue was frozen", when)
		}
	}

	heat("91")
	s := awaitStatus(t, n, "red is not paused", func(s *api.Status) bool { return isPaused(s) && condition(s) != "" })
	if got := condition(s); !strings.Contains(got, "GPU 2 has 91 °C, and is hot from 85 °C") || !strings.HasSuffix(got, ": "+red) {
		t.Errorf("the condition is %q", got)
	}
	if e := events.await(t, "lease.paused", red); !strings.Contains(e.Message, "91 °C") || e.Tenant != "red" {
		t.Errorf("the event is %+v", e)
	}
	if l := findLease(s, blue); len(l.FrozenFor) > 0 {
		t.Errorf("blue is frozen for %q", l.FrozenFor)
	}
	if r := n.CLI(
		soon(t), "explain", red,
	); r.Code != 0 || !strings.Contains(strings.Join(strings.Fields(r.Out), " "), "paused until its GPU has 80 °C: GPU 2 has 91 °C, and is hot from 85 °C (temperature.do: pause-low)") ||
		!strings.Contains(r.Out, "read back: it is frozen now") {
		t.Errorf("it is explained with %d: %s", r.Code, r.Out)
	}
	onlyRed("at 91 °C")
	if r := n.CLI(
		soon(t), "lease", "show", red,
	); !strings.Contains(r.Out, "running, frozen") || !strings.Contains(r.Out, "for the temperature of its GPU") ||
		!strings.Contains(r.Out, "notice: it is paused: GPU 2 has 91 °C") {
		t.Errorf("lease show prints:\n%s", r.Out)
	}
	if r := n.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "paused until it has 80 °C: "+red) {
		t.Errorf("the doctor prints:\n%s", r.Out)
	}
	heat("81")
	s = awaitStatus(t, n, "81 °C are not read", func(s *api.Status) bool { return *s.GPUs[2].Health.Readings.Temperature == 81 })
	if !isPaused(s) {
		t.Errorf("at 81 °C it is frozen for %q", findLease(s, red).FrozenFor)
	}
	heat("80")
	s = awaitStatus(t, n, "red does not continue", func(s *api.Status) bool { return !isPaused(s) && condition(s) == "" })
	if l := findLease(s, red); len(l.FrozenFor) > 0 {
		t.Errorf("afterwards it is frozen for %q", l.FrozenFor)
	}
	if e := events.await(t, "lease.continued", red); !strings.Contains(e.Message, "80 °C") {
		t.Errorf("the event is %+v", e)
	}
	f.taking(t, "red")

	// Without the daemon it runs; the next daemon pauses it again, and thaws it when it stops.
	heat("91")
	awaitStatus(t, n, "red is not paused again", isPaused)
	killed := time.Now()
	n.KillDaemon()
	thawed(t, n)
	if d := time.Since(killed); d > failOpen {
		t.Errorf("it was thawed %v after the daemon was killed", d)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "red is not paused after a restart", isPaused)
	onlyRed("after a restart")
	n.StopDaemon()
	thawed(t, n)
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	// The spec ends it before the next reading.
	awaitStatus(t, n, "red is not paused after a stop", isPaused)
	apply(t, n, replaced(t, replaced(t, spec, "pause-low", "tell"), "  - name: red\n", "  - name: red\n    priority: low\n"))
	awaitStatus(t, n, "red is paused although the spec only reports", func(s *api.Status) bool { return !isPaused(s) })
	if l := findLease(status(t, n), blue); l == nil {
		t.Error("the lease of blue ended")
	}
}
