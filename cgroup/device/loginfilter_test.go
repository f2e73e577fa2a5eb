package device_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/test/programs"
)

func closed(first, last uint32) device.Range {
	return device.Range{Type: 'c', Major: gpuMajor, First: first, Last: last}
}

func except(uid, minor uint32) device.Exception {
	return device.Exception{UID: uid, Rule: rw(minor)[0]}
}

func setLoginFilter(t testing.TB, dir string, f device.LoginFilter) {
	t.Helper()
	if _, err := device.SetLoginFilter(dir, f); err != nil {
		t.Fatal(err)
	}
}

func TestLoginFilterDeniesWhatIsClosedExceptExceptions(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	root, user, other := startIn(t, dir, 0, n), startIn(t, dir, nobody, n), startIn(t, dir, nobody-1, n)
	f := device.LoginFilter{
		Closed: []device.Range{closed(0, 2)},
		Except: []device.Exception{except(nobody, 1), except(device.AnyUser, 2)},
	}
	if wrote, err := device.SetLoginFilter(dir, f); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	root.wants(allowed, "n0", "n1", "n2", "n3", "ctl")
	user.wants(allowed, "n1", "n2", "n3", "ctl", "other")
	user.wants(denied, "n0", "again0")
	other.wants(allowed, "n2", "n3", "ctl")
	other.wants(denied, "n0", "n1")
	other.wants("opened", "null", "zero")
	if wrote, err := device.SetLoginFilter(dir, f); err != nil || wrote {
		t.Errorf("the same filter again: wrote %v, %v", wrote, err)
	}
	if got, ok, err := device.ReadLoginFilter(dir); err != nil || !ok || !got.Equal(f) {
		t.Errorf("read back %+v, %v, %v", got, ok, err)
	}
	if removed, err := device.RemoveLoginFilter(dir); err != nil || !removed {
		t.Fatalf("removed %v, %v", removed, err)
	}
	other.wants(allowed, "n0")
	if _, ok, err := device.ReadLoginFilter(dir); ok || err != nil {
		t.Errorf("a filter is left: %v, %v", ok, err)
	}
}

func TestLoginFilterOfAWholeMajor(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	user := startIn(t, dir, nobody, n)
	all := device.LoginFilter{Closed: []device.Range{device.All(gpuMajor)}}
	setLoginFilter(t, dir, all)
	user.wants(denied, "n0", "n3", "ctl")
	user.wants(allowed, "other")
	if got, _, err := device.ReadLoginFilter(dir); err != nil || !got.Equal(all) {
		t.Errorf("read back %+v, %v", got, err)
	}
	setLoginFilter(t, dir, device.LoginFilter{Closed: []device.Range{device.All(gpuMajor)}, Except: []device.Exception{except(nobody, 3)}})
	user.wants(denied, "n0")
	user.wants(allowed, "n3")
	// At boot all GPUs are closed; later the daemon closes only the managed ones.
	setLoginFilter(t, dir, device.LoginFilter{Closed: []device.Range{closed(0, 0), closed(2, 2)}})
	user.wants(denied, "n0", "n2")
	user.wants(allowed, "n1", "ctl")
}

func TestLoginFilterChecksTheAccess(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	setLoginFilter(t, dir, device.LoginFilter{
		Closed: []device.Range{closed(0, 3)},
		Except: []device.Exception{{UID: nobody, Rule: device.Rule{Type: 'c', Major: gpuMajor, Minor: 0, Access: "r"}}},
	})
	user, root := startIn(t, dir, nobody, n), startIn(t, dir, 0, n)
	for request, want := range map[string]string{"open r N/n0": allowed, "open w N/n0": denied, "open rw N/n0": denied, "open r N/n1": denied} {
		if got := user.request("%s", request); got != want {
			t.Errorf("%s: %s, want %s", request, got, want)
		}
	}
	// Drivers create their nodes on first use, and creating a node is not opening it.
	if got := root.request("make N/made"); got != "opened" {
		t.Errorf("creating a node: %s", got)
	}
}

// needsUserNamespaces skips a test where the host, or a chroot, has none.
func needsUserNamespaces(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "id", "-u").CombinedOutput(); err != nil {
		t.Skipf("needs user namespaces: %s", out)
	}
}

// The BPF helper returns the user id in the host's user namespace.
func TestLoginFilterDeniesRootOfAUserNamespace(t *testing.T) {
	needsUserNamespaces(t)
	dir, n := newCgroup(t), nodes(t)
	setLoginFilter(t, dir, device.LoginFilter{Closed: []device.Range{closed(0, 3)}, Except: []device.Exception{except(nobody, 1)}})
	user := startIn(t, dir, nobody, n)
	for _, c := range []struct{ node, want string }{
		{"n0", "0; Operation not permitted"},
		{"n1", "0; No such device or address"},
	} {
		got := user.request("sh unshare --user --map-root-user sh -c 'id -u; exec 3<N/%s' 2>&1 | sed 's/.*: //'", c.node)
		if got != c.want {
			t.Errorf("root of a namespace opens %s: %q, want %q", c.node, got, c.want)
		}
	}
}

// A setuid program counts as the user who started it.
func TestLoginFilterSeesTheUserBehindASetuidProgram(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	setLoginFilter(t, dir, device.LoginFilter{Closed: []device.Range{closed(0, 3)}})
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Skip("needs cat")
	}
	b, err := os.ReadFile(cat)
	if err != nil {
		t.Fatal(err)
	}
	suid := filepath.Join(n, "cat")
	if err := programs.Write(suid, b); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(suid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(n, "secret")
	if err := os.WriteFile(secret, []byte("read"), 0o600); err != nil {
		t.Fatal(err)
	}
	user := startIn(t, dir, nobody, n)
	if got := user.request("sh N/cat N/secret"); got != "read" {
		t.Skipf("needs setuid programs: %s", got)
	}
	if got, want := user.request("sh N/cat N/n0 2>&1 | sed 's/.*: //'"), "Operation not permitted"; got != want {
		t.Errorf("a setuid program opens a closed device: %q, want %q", got, want)
	}
}

func TestLoginFilterClosesNoOpenFile(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	user := startIn(t, dir, nobody, n)
	if got := user.request("keep N/zero"); got != "opened" {
		t.Fatal(got)
	}
	setLoginFilter(t, dir, device.LoginFilter{Closed: []device.Range{{Type: 'c', Major: 1, First: 5, Last: 5}}})
	if got := user.request("open r N/zero"); got != denied {
		t.Errorf("a new open: %s", got)
	}
	if got := user.request("kept"); got != "1 <nil>" {
		t.Errorf("reading what was open before: %s", got)
	}
}

// Logins have cgroups below the filter's. Some exist before the filter is set, and some are created later.
func TestLoginFilterCoversEveryCgroupBelow(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	early := startIn(t, sub(t, sub(t, dir, "user-1"), "session-1"), nobody, n)
	setLoginFilter(t, dir, device.LoginFilter{Closed: []device.Range{closed(0, 1)}, Except: []device.Exception{except(nobody, 1)}})
	last := sub(t, sub(t, dir, "user-2"), "session-2")
	late := startIn(t, last, nobody, n)
	for _, p := range []*process{early, late} {
		p.wants(denied, "n0")
		p.wants(allowed, "n1")
	}
	// A unit inside with a filter of its own: both apply.
	setLoginFilter(t, last, device.LoginFilter{Closed: []device.Range{closed(1, 2)}, Except: []device.Exception{except(device.AnyUser, 2)}})
	late.wants(denied, "n0", "n1")
	late.wants(allowed, "n2")
	if _, ok, err := device.ReadLoginFilter(filepath.Dir(last)); ok || err != nil {
		t.Errorf("a filter is found where none was set: %v", err)
	}
}

// The daemon may be killed at any time: the attached filter remains, and the next daemon finds it.
func TestLoginFilterOutlivesTheProcessThatSetIt(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	maker := exec.Command(self)
	maker.Env = append(os.Environ(), "DEVICE_TEST_FILTER="+dir)
	if out, err := maker.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	user := startIn(t, dir, nobody, n)
	user.wants(denied, "n0")
	user.wants(allowed, "n3")
	if wrote, err := device.SetLoginFilter(dir, device.LoginFilter{Closed: []device.Range{closed(0, 2)}}); err != nil || wrote {
		t.Errorf("the existing filter was set again: %v, %v", wrote, err)
	}
	setLoginFilter(t, dir, device.LoginFilter{Closed: []device.Range{closed(3, 3)}})
	user.wants(allowed, "n0")
	user.wants(denied, "n3")
}

// An upgrade finds the program of the previous version and replaces it. In between both apply.
func TestLoginFilterOfAnotherVersionIsReplaced(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	old, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "gpushare_logins", Type: ebpf.CGroupDevice, AttachType: ebpf.AttachCGroupDevice, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, // denies everything
	})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	cg, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cg.Close()
	if err := link.RawAttachProgram(
		link.RawAttachProgramOptions{Target: int(cg.Fd()), Program: old, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI},
	); err != nil {
		t.Fatal(err)
	}
	f := device.LoginFilter{Closed: []device.Range{closed(0, 0)}}
	if wrote, err := device.SetLoginFilter(dir, f); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	if n, err := device.CountPrograms(dir); n != 1 || err != nil {
		t.Errorf("%d programs, %v", n, err)
	}
	user := startIn(t, dir, nobody, n)
	user.wants(denied, "n0")
	user.wants(allowed, "n1")
}

// The filter changes while logins open devices.
func TestLoginFilterChangesWithoutAWrongAnswer(t *testing.T) {
	dir, n := newCgroup(t), nodes(t)
	// n0 is always an exception for this user, n1 always closed, n3 always open. The others change.
	filters := []device.LoginFilter{
		{Closed: []device.Range{closed(0, 1)}, Except: []device.Exception{except(nobody, 0)}},
		{Closed: []device.Range{closed(0, 2)}, Except: []device.Exception{except(nobody, 0), except(nobody-1, 1), except(nobody, 2)}},
		{
			Closed: []device.Range{closed(0, 1), {Type: 'c', Major: 237, Last: device.MaxMinor}},
			Except: []device.Exception{except(nobody, 0), except(device.AnyUser, 2)},
		},
	}
	setLoginFilter(t, dir, filters[0])
	whileOpening(
		t, dir, nobody, n, map[string]string{"n0": allowed, "n1": denied, "n3": allowed},
		func(i int) { setLoginFilter(t, dir, filters[i%len(filters)]) },
	)
}

func TestLoginFilterReadsBackAsItWasSet(t *testing.T) {
	dir := newCgroup(t)
	rapid.Check(t, func(t *rapid.T) {
		var f device.LoginFilter
		for range rapid.IntRange(0, 4).Draw(t, "ranges") {
			first := rapid.Uint32Range(0, 300).Draw(t, "first")
			f.Closed = append(f.Closed, device.Range{
				Type: rapid.SampledFrom([]byte("cb")).Draw(t, "type"), Major: rapid.Uint32Range(195, 197).Draw(t, "major"),
				First: first, Last: first + rapid.Uint32Range(0, 40).Draw(t, "more"),
			})
		}
		if rapid.Bool().Draw(t, "all") {
			f.Closed = append(f.Closed, device.All(509))
		}
		for range rapid.IntRange(0, 5).Draw(t, "exceptions") {
			f.Except = append(f.Except, device.Exception{UID: rapid.Uint32().Draw(t, "uid"), Rule: device.Rule{
				Type:   'c',
				Major:  rapid.SampledFrom([]uint32{195, 196, 509}).Draw(t, "major of"),
				Minor:  rapid.Uint32Range(0, 300).Draw(t, "minor"),
				Access: rapid.SampledFrom([]string{"r", "w", "rw", "rwm"}).Draw(t, "access"),
			}})
		}
		if _, err := device.SetLoginFilter(dir, f); err != nil {
			t.Fatal(err)
		}
		if got, ok, err := device.ReadLoginFilter(dir); err != nil || !ok || !got.Equal(f) {
			t.Fatalf("read back %+v, %v, %v; want %+v", got, ok, err, f.Canonical())
		}
		if wrote, err := device.SetLoginFilter(dir, f); err != nil || wrote {
			t.Fatalf("the same filter again: %v, %v", wrote, err)
		}
	})
}

func TestLoginFilterRefusesInvalidRanges(t *testing.T) {
	for _, f := range []device.LoginFilter{
		{Closed: []device.Range{{Type: 'x', Last: 1}}},
		{Closed: []device.Range{closed(3, 2)}},
		{Closed: []device.Range{closed(1, device.MaxMinor+1)}},
		{Closed: []device.Range{closed(1, device.MaxMinor)}},
	} {
		if wrote, err := device.SetLoginFilter(t.TempDir(), f); err == nil || wrote {
			t.Errorf("%+v was accepted", f)
		}
	}
}

func TestNoSuchCgroup(t *testing.T) {
	dir := filepath.Join(newCgroup(t), "none")
	for what, err := range map[string]error{
		"rules":            second(device.SetRules(dir, nil)),
		"a filter":         second(device.SetLoginFilter(dir, device.LoginFilter{})),
		"reading a filter": third(device.ReadLoginFilter(dir)),
		"reading rules":    third(device.Rules(dir)),
		"a probe":          device.Probe(dir),
	} {
		if !isNoCgroup(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{"rules": second(device.RemoveRules(dir)), "a filter": second(device.RemoveLoginFilter(dir))} {
		if err != nil {
			t.Errorf("removing %s: %v", what, err)
		}
	}
}

func BenchmarkReadLoginFilter(b *testing.B) {
	dir := newCgroup(b)
	setLoginFilter(b, dir, device.LoginFilter{Closed: []device.Range{closed(0, 7), {Type: 'c', Major: 237, First: 3, Last: 3 + 8*135}}})
	for b.Loop() {
		if _, _, err := device.ReadLoginFilter(dir); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSetLoginFilter(b *testing.B) {
	dir := newCgroup(b)
	for i := uint32(0); b.Loop(); i++ {
		setLoginFilter(b, dir, device.LoginFilter{
			Closed: []device.Range{closed(0, 7), {Type: 'c', Major: 237, First: 3, Last: 3 + 8*135}},
			Except: []device.Exception{except(i%2, 1)},
		})
	}
}
