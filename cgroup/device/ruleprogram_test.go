package device_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/gpushare/gpushare/cgroup/device"
)

func rw(minors ...uint32) []device.Rule {
	var rules []device.Rule
	for _, m := range minors {
		rules = append(rules, device.Rule{Type: 'c', Major: gpuMajor, Minor: m, Access: "rw"})
	}
	return rules
}

func setRules(t testing.TB, dir string, rules []device.Rule) {
	t.Helper()
	if _, err := device.SetRules(dir, rules); err != nil {
		t.Fatal(err)
	}
}

func TestRulesAllowWhatIsListed(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	p := startIn(t, dir, 0, n)
	p.wants(allowed, "n0", "n1", "ctl", "other")
	if wrote, err := device.SetRules(dir, rw(0, 255)); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	p.wants(allowed, "n0", "ctl", "again0") // another node of the same device is the same device
	p.wants(denied, "n1", "n2", "other", "mem")
	p.wants("opened", "null", "zero", "full", "random", "urandom") // what DevicePolicy=closed allows
	if wrote, err := device.SetRules(dir, rw(255, 0)); err != nil || wrote {
		t.Errorf("the same rules again: wrote %v, %v", wrote, err)
	}
	if got, ok, err := device.Rules(dir); err != nil || !ok || !slices.Equal(got, rw(0, 255)) {
		t.Errorf("read back %v, %v, %v", got, ok, err)
	}
	setRules(t, dir, nil)
	p.wants(denied, "n0", "ctl")
	p.wants("opened", "null")
	if removed, err := device.RemoveRules(dir); err != nil || !removed {
		t.Fatalf("removed %v, %v", removed, err)
	}
	p.wants(allowed, "n0", "n1", "other")
	if removed, err := device.RemoveRules(dir); err != nil || removed {
		t.Errorf("removing none: %v, %v", removed, err)
	}
	if _, ok, err := device.Rules(dir); ok || err != nil {
		t.Errorf("rules are left: %v, %v", ok, err)
	}
}

func TestRulesCheckTheAccess(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	setRules(t, dir, []device.Rule{
		{Type: 'c', Major: gpuMajor, Minor: 0, Access: "r"},
		{Type: 'c', Major: gpuMajor, Minor: 1, Access: "w"},
		{Type: 'b', Major: gpuMajor, Minor: 2, Access: "rwm"},
	})
	p := startIn(t, dir, 0, n)
	for _, c := range []struct{ request, want string }{
		{"open r N/n0", allowed},
		{"open w N/n0", denied},
		{"open rw N/n0", denied},
		{"open w N/n1", allowed},
		{"open r N/n1", denied},
		{"open r N/n2", denied}, // the block device with these numbers is another device
		{"make N/made", denied},
	} {
		if got := p.request("%s", c.request); got != c.want {
			t.Errorf("%s: %s, want %s", c.request, got, c.want)
		}
	}
}

func TestSetRulesRefusesInvalidRules(t *testing.T) {
	for _, r := range []device.Rule{{Type: 'x', Access: "r"}, {Type: 'c', Access: "rx"}} {
		if wrote, err := device.SetRules(t.TempDir(), []device.Rule{r}); err == nil || wrote {
			t.Errorf("%+v was accepted", r)
		}
	}
}

// The rules apply whatever a process does to itself.
func TestRulesApplyWhateverAProcessDoes(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	parent := filepath.Dir(dir)
	setRules(t, dir, rw(0))
	p := startIn(t, dir, nobody, n)
	p.wants(allowed, "n0")
	const open = "if (exec 3<N/%s) 2>/dev/null; then echo opened; else (exec 3<N/%s) 2>&1 | sed 's/.*: //'; fi"
	for _, c := range []struct{ what, script string }{
		{"fork", open},
		{"exec", "exec sh -c \"" + open + "\""},
		{"setsid", "setsid -w sh -c \"" + open + "\""},
		{"a background child of a parent that has exited", "(setsid sh -c \"" + open + "\" >N/said 2>&1 &) ; while ! grep -qs . N/said; do :; done; cat N/said"},
		{"a user namespace", "unshare --user --map-root-user sh -c \"" + open + "\" || echo none"},
		{"a mount namespace", "unshare --user --map-root-user --mount sh -c \"" + open + "\" || echo none"},
	} {
		t.Run(c.what, func(t *testing.T) {
			if strings.HasPrefix(c.script, "unshare ") {
				needsUserNamespaces(t)
			}
			for node, want := range map[string]string{"n0": "No such device or address", "n1": "Operation not permitted"} {
				script := fmt.Sprintf(c.script, node, node)
				if got := p.request("sh rm -f N/said; %s", script); got != want {
					t.Errorf("opening %s returns %q, want %q", node, got, want)
				}
			}
		})
	}
	// Only root may move itself to another cgroup.
	for _, to := range []string{parent, dir} {
		for _, file := range []string{"cgroup.procs", "cgroup.threads"} {
			if got := p.request("sh sh -c 'echo $$ >%s/%s' 2>&1 | sed 's/.*: //'", to, file); got != "Permission denied" {
				t.Errorf("writing %s of %s: %s", file, to, got)
			}
		}
	}
	if got := p.request("sh mkdir %s/own", dir); got == "opened" {
		t.Error("a tenant created a cgroup")
	}
	p.wants(denied, "n1")
}

func TestRulesOfNestedCgroups(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	early := sub(t, dir, "early")
	p := startIn(t, early, 0, n)
	setRules(t, dir, rw(0, 1))
	late := sub(t, dir, "late")
	q := startIn(t, late, 0, n)
	for _, x := range []*process{p, q} {
		x.wants(allowed, "n0", "n1")
		x.wants(denied, "n2")
	}
	// Inner rules do not allow what the outer rules deny.
	setRules(t, late, rw(1, 2))
	q.wants(allowed, "n1")
	q.wants(denied, "n0", "n2")
	p.wants(allowed, "n0", "n1")
	if got, ok, err := device.Rules(early); ok || err != nil {
		t.Errorf("rules where none were set: %v, %v", got, err)
	}
	deep := sub(t, sub(t, late, "a"), "b")
	startIn(t, deep, 0, n).wants(denied, "n0", "n2")
}

// While the rules change, what both the old and the new rules allow is never denied, and what neither allows is never
// allowed.
func TestRulesChangeWithoutAWrongAnswer(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	a, b := rw(0, 1), rw(0, 2)
	setRules(t, dir, a)
	whileOpening(t, dir, 0, n, map[string]string{"n0": allowed, "n3": denied}, func(int) {
		a, b = b, a
		setRules(t, dir, a)
	})
	if n, err := device.CountPrograms(dir); n != 1 || err != nil {
		t.Errorf("%d programs are left, %v", n, err)
	}
}

func BenchmarkSetRules(b *testing.B) {
	dir := newCgroup(b)
	rules := [][]device.Rule{rw(0, 1, 2, 3, 255), rw(0, 1, 2, 4, 255)}
	for i := 0; b.Loop(); i++ {
		setRules(b, dir, rules[i%2])
	}
}

func BenchmarkReadRules(b *testing.B) {
	dir := newCgroup(b)
	setRules(b, dir, rw(0, 1, 2, 3, 255))
	for b.Loop() {
		if _, _, err := device.Rules(dir); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCountPrograms(b *testing.B) {
	dir := newCgroup(b)
	setRules(b, dir, rw(0))
	for b.Loop() {
		if _, err := device.CountPrograms(dir); err != nil {
			b.Fatal(err)
		}
	}
}

// below creates cgroups in a cgroup.
func below(t *testing.T, dir string, count int) (dirs []string) {
	t.Helper()
	for i := range count {
		child := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(child, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(child); err != nil {
				t.Error(err)
			}
		})
		dirs = append(dirs, child)
	}
	return dirs
}

// A program is loaded once for each list of rules: cgroups with the same rules have the same one, and the end of one cgroup, or other
// rules of one, change nothing for the others.
func TestCgroupsWithTheSameRulesHaveTheSameProgram(t *testing.T) {
	dirs, n := below(t, newCgroup(t), 3), nodes(t)
	id := func(dir string) ebpf.ProgramID {
		t.Helper()
		cg, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer cg.Close()
		r, err := link.QueryPrograms(link.QueryOptions{Target: int(cg.Fd()), Attach: ebpf.AttachCGroupDevice})
		if err != nil || len(r.Programs) != 1 {
			t.Fatalf("%d programs, %v", len(r.Programs), err)
		}
		return r.Programs[0].ID
	}
	first, second := startIn(t, dirs[0], 0, n), startIn(t, dirs[1], 0, n)
	setRules(t, dirs[0], rw(0, 255))
	setRules(t, dirs[1], rw(255, 0))
	setRules(t, dirs[2], rw(0))
	if a, b, c := id(dirs[0]), id(dirs[1]), id(dirs[2]); a != b || a == c {
		t.Errorf("the programs are %d, %d and %d", a, b, c)
	}
	if _, err := device.RemoveRules(dirs[0]); err != nil {
		t.Fatal(err)
	}
	first.wants(allowed, "n0", "n1", "ctl")
	second.wants(allowed, "n0", "ctl")
	second.wants(denied, "n1")
	setRules(t, dirs[1], rw(0))
	second.wants(allowed, "n0")
	second.wants(denied, "n1", "ctl")
	if b, c := id(dirs[1]), id(dirs[2]); b != c {
		t.Errorf("with the same rules: %d and %d", b, c)
	}
	setRules(t, dirs[0], rw(1))
	first.wants(denied, "n0", "ctl")
	first.wants(allowed, "n1")
}

// Programs that are not kept any more stay where they are attached.
func TestManyListsOfRules(t *testing.T) {
	dirs, n := below(t, newCgroup(t), 2), nodes(t)
	dir, other := dirs[0], dirs[1]
	p := startIn(t, dir, 0, n)
	setRules(t, dir, rw(0))
	for minor := range uint32(device.MaxLoaded + 1) {
		setRules(t, other, rw(minor+2))
	}
	if kept := device.Loaded(); kept != device.MaxLoaded {
		t.Errorf("%d programs are kept", kept)
	}
	p.wants(allowed, "n0")
	p.wants(denied, "n1")
	if wrote, err := device.SetRules(dir, rw(0)); err != nil || wrote {
		t.Errorf("the same rules again: wrote %v, %v", wrote, err)
	}
}
