package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/test/harness"
)

// listener records the events of a node.
type listener struct {
	mu  sync.Mutex // guards all
	all []api.Event
}

func listen(t *testing.T, n *harness.Node) *listener {
	t.Helper()
	l := &listener{}
	began := make(chan struct{})
	go func() {
		var once sync.Once
		_ = n.Client().Events(t.Context(), func(e api.Event) { // It ends with the test.
			l.mu.Lock()
			defer l.mu.Unlock()
			l.all = append(l.all, e)
			once.Do(func() { close(began) })
		})
	}()
	// The stream has no first message: leases are started until an event arrives.
	err := harness.Await(soon(t), 20*time.Millisecond, "no event arrives", func() (bool, error) {
		select {
		case <-began:
			return true, nil
		default:
			r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "part", "--", "true")
			return false, map[bool]error{true: nil, false: errOf(r)}[r.Code == 0]
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func errOf(r harness.Result) error { return &api.Error{Kind: api.KindInternal, Message: r.Err} }

// of returns the messages of the events of one kind.
func (l *listener) of(kind string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, e := range l.all {
		if e.Kind == kind {
			out = append(out, e.Message)
		}
	}
	return out
}

// Device rules that were removed from outside are active again after one converge. It is reported once, and nothing more is
// written.
func TestDriftIsCorrected(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, everything)
	h, err := cgroup.FindHierarchy()
	if err != nil || !strings.Contains(status(t, n).Node.Adapter, "cgroupfs") {
		t.Skip("slices need root and a cgroup v2 hierarchy")
	}
	if err := device.Probe(h.Dir("/")); err != nil {
		t.Skipf("device programs cannot be attached here: %v", err)
	}
	_, id := begin(t, n, "red", "part", "sleep", "60")
	events := listen(t, n)
	scope := h.Dir(filepath.Dir(leaseByID(status(t, n), id).Isolation.Cgroup))
	dirs := map[string]string{"the slice of red": "", "the slice of red/part": filepath.Dir(scope), "the devices of lease " + id: scope}
	dirs["the slice of red"] = filepath.Dir(filepath.Dir(scope))
	counter := func(name string) uint64 {
		all, err := n.Client().Counters(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		return all[name]
	}
	reload := func() {
		t.Helper()
		if err := n.Client().Reload(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	reload()
	if got := counter("drift.corrected"); got != 0 {
		t.Fatalf("%d corrections before a change: %q", got, events.of("drift.corrected"))
	}
	was := map[string][]device.Rule{}
	for what, dir := range dirs {
		rules, ok, err := device.Rules(dir)
		if err != nil || !ok {
			t.Fatalf("%s has no device rules: %v", what, err)
		}
		was[what] = rules
		if removed, err := device.RemoveRules(dir); err != nil || !removed {
			t.Fatalf("%s: its device rules were not removed: %v", what, err)
		}
	}
	reload()
	for what, dir := range dirs {
		rules, ok, err := device.Rules(dir)
		if err != nil || !ok || len(rules) != len(was[what]) {
			t.Errorf("%s: its device rules are %v (%v, %v), they were %v", what, rules, ok, err, was[what])
		}
	}
	before := counter("writes")
	reload()
	reload()
	if got := counter("writes"); got != before {
		t.Errorf("%d more writes after the correction", got-before)
	}
	reports := events.of("drift.corrected")
	if len(reports) != len(dirs) || counter("drift.corrected") != uint64(len(dirs)) {
		t.Errorf("reported %d times, counted %d times, of %d: %q", len(reports), counter("drift.corrected"), len(dirs), reports)
	}
	for what := range dirs {
		if !strings.Contains(strings.Join(reports, "\n"), what+": all devices are open") {
			t.Errorf("no event says what was found of %s: %q", what, reports)
		}
	}
	if r := n.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "changed from outside") {
		t.Errorf("doctor does not report it:\n%s", r.Out)
	}
	for _, c := range status(t, n).Node.Conditions {
		if c.Kind == "drift" {
			t.Errorf("it is corrected, and a condition says %s", c.Message)
		}
	}
	// A change of the spec is not drift.
	apply(t, n, replaced(t, everything, "      - {name: join, mps: {share: 30%, gpu_memory: 8GiB}}\n", ""))
	reload()
	if got := counter("drift.corrected"); got != uint64(len(dirs)) {
		t.Errorf("a change of the spec is reported as drift: %q", events.of("drift.corrected"))
	}
}

// A removed login filter is corrected and reported like device rules, and unmanage removes it.
func TestLoginFilterDriftAndUnmanage(t *testing.T) {
	l := newLogins(t)
	apply(t, l.Node, closedLogins)
	read := func() bool {
		_, ok, err := device.ReadLoginFilter(l.dir)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if err := l.Client().Reload(soon(t)); err != nil || !read() {
		t.Fatalf("there is no login filter: %v", err)
	}
	for want := range uint64(2) {
		if removed, err := device.RemoveLoginFilter(l.dir); err != nil || !removed {
			t.Fatalf("the login filter was not removed: %v", err)
		}
		for range 2 {
			if err := l.Client().Reload(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
		all, err := l.Client().Counters(soon(t))
		if err != nil || !read() || all["drift.corrected"] != want+1 {
			t.Errorf("login filter active %v, %d corrections: %v", read(), all["drift.corrected"], err)
		}
	}
	if r := l.CLI(soon(t), "unmanage", "--check"); r.Code != api.ExitConflict || !strings.Contains(r.Out, "remove the login filter of") {
		t.Errorf("--check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := l.CLI(soon(t), "unmanage"); r.Code != 0 || read() {
		t.Errorf("unmanage exits with %d, login filter active %v: %s%s", r.Code, read(), r.Out, r.Err)
	}
	unmanaged(t, l.Node)
	if read() {
		t.Error("the login filter is active again")
	}
}

// A foreign slice below gpushare.slice is reported, and neither apply nor unmanage removes it.
func TestSliceOfAnother(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, everything)
	found := slicesOf(t, n)
	if len(found) == 0 {
		t.Skip("slices need root and a cgroup v2 hierarchy")
	}
	theirs := filepath.Join(filepath.Dir(found[0]), "theirs.slice")
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	expectPresent := func(after string) {
		t.Helper()
		if _, err := os.Stat(theirs); err != nil {
			t.Errorf("after %s it does not exist: %v", after, err)
		}
	}
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	expectPresent("a converge")
	s := status(t, n)
	if !slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool {
		return c.Kind == "foreign" && strings.Contains(c.Message, "theirs")
	}) {
		t.Errorf("no condition reports it: %+v", s.Node.Conditions)
	}
	apply(t, n, replaced(t, everything, "name: red", "name: rouge"))
	expectPresent("an apply")
	if now := slicesOf(t, n); slices.ContainsFunc(now, func(s string) bool { return strings.HasSuffix(s, "/red.slice") }) {
		t.Errorf("a slice of gpushare is left: %q", now)
	}
	r := n.CLI(soon(t), "unmanage")
	if r.Code != 0 || !strings.Contains(r.Err, "theirs is not managed by gpushare") {
		t.Errorf("unmanage exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	expectPresent("unmanage")
	if now := slicesOf(t, n); len(now) != 1 {
		t.Errorf("left are %q", now)
	}
}
