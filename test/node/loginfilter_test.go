package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/test/harness"
)

// closedLogins is the node of the other tests with GPU 1 named by nobody.
const closedLogins = `version: v1
node: {enforce: on, isolation: {logins: closed}}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 1g.5gb]}}
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: exclusive}
tenants:
  - name: red
    members: {users: [nobody]}
    grants:
      - {name: cut, mig: 3g.20gb}
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}
      - {name: whole, exclusive: 1}
`

const (
	nobody = 65534
	games  = 5 // another user
)

// logins is a cgroup of the test's own in the place of user.slice, and a node whose settings name it.
type logins struct {
	*harness.Node
	dir string // of the cgroup
	cg  string
}

func newLogins(t *testing.T) *logins {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to guard logins")
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		t.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	l := &logins{cg: fmt.Sprintf("/gpushare-logins-%d-%s", os.Getpid(), strings.ToLower(t.Name()))}
	l.dir = h.Dir(l.cg)
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		t.Skipf("needs a cgroup v2 hierarchy that may be written: %v", err)
	}
	t.Cleanup(func() {
		if err := h.Kill(t.Context(), l.cg); err != nil {
			t.Error(err)
		}
		if err := h.Remove(l.cg); err != nil {
			t.Error(err)
		}
	})
	if err := device.Probe(l.dir); err != nil {
		t.Skipf("needs device programs: %v", err)
	}
	l.Node = newNode(t, quick)
	l.Settings = map[string]string{"logins_cgroup": l.cg}
	if err := l.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	if !l.RealNodes {
		t.Skip("needs device nodes that can be opened in the temporary directory, and no NVIDIA driver on this host")
	}
	return l
}

// command is a command of a user in a session of his.
func (l *logins) command(t *testing.T, uid uint32, session string, argv ...string) *exec.Cmd {
	t.Helper()
	dir := filepath.Join(l.dir, session)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cg, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cg.Close() })
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cg.Fd()), Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// opens is what a user's login is let through to now.
func (l *logins) opens(t *testing.T, uid uint32) []string {
	t.Helper()
	return l.opensIn(t, uid, fmt.Sprintf("user-%d", uid))
}

// opensIn is the same for a place of its own among the logins.
func (l *logins) opensIn(t *testing.T, uid uint32, place string) []string {
	t.Helper()
	out, err := l.command(t, uid, place, "sh", "-c", fmt.Sprintf(openNodes, l.Root())).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var nodes []string
	for line := range strings.Lines(string(out)) {
		if n := strings.TrimPrefix(strings.TrimSpace(line), "open "); filepath.Dir(n) == "." && strings.HasPrefix(n, "nvidia") && len(n) == len("nvidia0") {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func (l *logins) expectOpens(t *testing.T, when string, uid uint32, want ...string) {
	t.Helper()
	if got := l.opens(t, uid); !slices.Equal(got, want) {
		t.Errorf("%s: user %d opens %v, want %v", when, uid, got, want)
	}
}

var allFour = []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3"}

func TestLoginFilterDeniesManagedGPUs(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	l.expectOpens(t, "before", nobody, allFour...)
	r := l.CLIIn(soon(t), closedLogins, "apply", "-f", "-", "--check")
	if r.Code != api.ExitOK || !strings.Contains(r.Out, "to logins ("+l.cg+")") {
		t.Errorf("the plan does not show the guard: %s%s", r.Out, r.Err)
	}
	l.expectOpens(t, "after --check", nobody, allFour...)
	apply(t, l.Node, closedLogins)
	l.expectOpens(t, "with the guard", nobody, "nvidia1")
	l.expectOpens(t, "with the guard", 0, allFour...)
	if r := l.CLIIn(soon(t), closedLogins, "apply", "-f", "-"); !strings.Contains(r.Out, "no changes") {
		t.Errorf("the second apply: %s%s", r.Out, r.Err)
	}
	before := counters(t, l.Node)
	if r := l.CLI(soon(t), "config", "reload"); r.Code != api.ExitOK {
		t.Fatal(r.Err)
	}
	if after := counters(t, l.Node); after["writes"] != before["writes"] {
		t.Errorf("converging again wrote %d times: %v, and %v before", after["writes"]-before["writes"], after, before)
	}
	for _, c := range status(t, l.Node).Node.Conditions {
		if c.Kind == "login-filter" {
			t.Errorf("a condition: %s", c.Message)
		}
	}

	// A lease has its GPU all the same: it is not in a login.
	if got, want := opened(t, l.Node, "whole"), []string{"nvidia-uvm", "nvidia3", "nvidiactl"}; !slices.Equal(got, want) {
		t.Errorf("a lease opens %v, want %v", got, want)
	}

	// While the daemon is dead the guard stays, and the next one has nothing to do.
	l.KillDaemon()
	l.expectOpens(t, "with the daemon dead", nobody, "nvidia1")
	if err := l.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	l.expectOpens(t, "with another daemon", nobody, "nvidia1")
	if after := counters(t, l.Node); after["login-filter.writes"]+after["steps"] != 0 {
		t.Errorf("the next daemon wrote %v", after)
	}

	// Somebody takes the program away: it comes back.
	if removed, err := device.RemoveLoginFilter(l.dir); err != nil || !removed {
		t.Fatalf("%v, %v", removed, err)
	}
	l.expectOpens(t, "with the program gone", nobody, allFour...)
	if r := l.CLI(soon(t), "config", "reload"); r.Code != api.ExitOK {
		t.Fatal(r.Err)
	}
	l.expectOpens(t, "mended", nobody, "nvidia1")

	r = l.CLIIn(soon(t), strings.Replace(closedLogins, "isolation: {logins: closed}", "isolation: {logins: open}", 1), "apply", "-f", "-")
	if r.Code != api.ExitOK || !strings.Contains(r.Out, "remove the login filter of logins") {
		t.Errorf("isolation.logins: open: %s%s", r.Out, r.Err)
	}
	l.expectOpens(t, "with isolation.logins: open", nobody, allFour...)
}

func counters(t *testing.T, n *harness.Node) map[string]uint64 {
	t.Helper()
	c, err := n.Client().Counters(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What runs in a login and is attached to a lease may open the lease's GPU, its user's other logins may, others not, and
// only for as long as the lease lives.
func TestLoginFilterAllowsALeasedGPU(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	apply(t, l.Node, closedLogins)
	cmd := l.command(t, nobody, "user-65534", "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	r := l.CLI(soon(t), "lease", "attach", "--pid", strconv.Itoa(cmd.Process.Pid), "-t", "red", "--grant", "whole")
	if r.Code != api.ExitOK {
		t.Fatalf("exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	s := status(t, l.Node)
	if len(s.Leases) != 1 || !s.Leases[0].Isolation.Devices {
		t.Fatalf("leases: %+v", s.Leases)
	}
	l.expectOpens(t, "with a lease", nobody, "nvidia1", "nvidia3")
	l.expectOpens(t, "without a lease", games, "nvidia1")
	if r := l.CLIIn(soon(t), closedLogins, "apply", "-f", "-"); !strings.Contains(r.Out, "no changes") {
		t.Errorf("an apply with the lease: %s%s", r.Out, r.Err)
	}
	l.KillDaemon()
	if err := l.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	l.expectOpens(t, "with another daemon", nobody, "nvidia1", "nvidia3")
	if r := l.CLI(soon(t), "lease", "release", s.Leases[0].ID); r.Code != api.ExitOK {
		t.Fatalf("exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	l.expectOpens(t, "released", nobody, "nvidia1")
}

// The boot: the program is there before the daemon and the driver, closes everything, and is narrowed when the GPUs are known.
func TestLoginFilterAtBoot(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	attach := func() string {
		t.Helper()
		out, err := exec.Command(filepath.Join(l.Bin, "gpushared"), "-attach-login-filter", "-settings", filepath.Join(l.Dir, "gpushared.yaml")).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := attach(); !strings.Contains(out, "no login filter") {
		t.Errorf("without a spec: %s", out)
	}
	apply(t, l.Node, closedLogins)
	if out := attach(); !strings.Contains(out, "is active already") {
		t.Errorf("beside a daemon: %s", out)
	}
	l.expectOpens(t, "beside a daemon", nobody, "nvidia1")

	l.StopDaemon()
	if _, err := device.RemoveLoginFilter(l.dir); err != nil { // as a boot does
		t.Fatal(err)
	}
	if out := attach(); !strings.Contains(out, "every GPU is closed to "+l.cg) {
		t.Errorf("at boot: %s", out)
	}
	l.expectOpens(t, "at boot", nobody)
	l.expectOpens(t, "at boot", 0, allFour...)
	if out := attach(); !strings.Contains(out, "is active already") {
		t.Errorf("once more: %s", out)
	}
	if err := l.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitOpens(t, l, nobody, "nvidia1")

	// A state that nobody can read may have asked for a guard.
	l.StopDaemon()
	if _, err := device.RemoveLoginFilter(l.dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"state.json", "state.previous.json"} {
		if err := os.WriteFile(filepath.Join(l.Dir, "state", name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out := attach(); !strings.Contains(out, "every GPU is closed") {
		t.Errorf("with a damaged state: %s", out)
	}
	l.expectOpens(t, "with a damaged state", nobody)
	if err := l.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, l.Node, "the guard that nobody asks for is not said", func(s *api.Status) bool {
		return slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool { return c.Kind == "login-filter" })
	})
}

func awaitOpens(t *testing.T, l *logins, uid uint32, want ...string) {
	t.Helper()
	err := harness.Await(soon(t), 50*time.Millisecond, fmt.Sprintf("user %d does not open exactly %v", uid, want), func() (bool, error) {
		return slices.Equal(l.opens(t, uid), want), nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestMissingLoginFilterIsReported(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, closedLogins)
	awaitStatus(t, n, "a guard that cannot be is not said", func(s *api.Status) bool {
		return slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool {
			return c.Kind == "login-filter" && strings.Contains(c.Message, "logins have access to managed GPUs")
		})
	})
	if r := n.CLI(soon(t), "status", "--exit-code"); r.Code != api.ExitDegraded {
		t.Errorf("status --exit-code gives %d", r.Code)
	}
}

// The cgroup of logins may come later than the spec: then it is guarded as soon as it is seen, and until then that is said.
func TestLoginFilterOfALaterCgroup(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	if err := os.Remove(l.dir); err != nil {
		t.Fatal(err)
	}
	apply(t, l.Node, closedLogins)
	awaitStatus(t, l.Node, "the missing cgroup is not said", func(s *api.Status) bool {
		return slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool {
			return c.Kind == "login-filter" && strings.Contains(c.Message, "there is no cgroup "+l.cg)
		})
	})
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if r := l.CLI(soon(t), "config", "reload"); r.Code != api.ExitOK {
		t.Fatal(r.Err)
	}
	l.expectOpens(t, "with its cgroup", nobody, "nvidia1")
	if r := l.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "a login filter is active on "+l.cg) {
		t.Errorf("doctor: %s%s", r.Out, r.Err)
	}
}
