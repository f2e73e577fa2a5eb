package node

import (
	"context"
	"errors"
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

// closedLogins is the spec of the other tests with closed logins and GPU 1 unmanaged.
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

// logins is a node whose settings name a cgroup of the test in place of user.slice.
type logins struct {
	*harness.Node
	dir string // of the cgroup
	cg  string
}

func newLogins(t *testing.T) *logins {
	t.Helper()
	return newLoginsOn(t, quick)
}

// newLoginsOn is newLogins for a node with the GPUs of a file.
func newLoginsOn(t *testing.T, file string) *logins {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the login filter needs root")
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
	l.Node = newNode(t, file)
	l.Settings = map[string]string{"logins_cgroup": l.cg}
	if err := l.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	if !l.RealNodes {
		t.Skip("needs device nodes that can be opened in the temporary directory, and no NVIDIA driver on this host")
	}
	return l
}

// command is a command of a user in a session.
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

// opens returns the GPUs that a login of the user can open.
func (l *logins) opens(t *testing.T, uid uint32) []string {
	t.Helper()
	return l.opensIn(t, uid, fmt.Sprintf("user-%d", uid))
}

// opensIn is opens for a cgroup below the logins.
func (l *logins) opensIn(t *testing.T, uid uint32, place string) []string {
	t.Helper()
	return openedBy(t, l.command(t, uid, place, "sh", "-c", fmt.Sprintf(openNodes, l.Root())))
}

// openedBy returns the GPUs that a command of openNodes could open.
func openedBy(t *testing.T, cmd *exec.Cmd) []string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var nodes []string
	for line := range strings.Lines(string(out)) {
		if n := strings.TrimPrefix(strings.TrimSpace(line), "open "); filepath.Dir(n) == "." && strings.HasPrefix(n, "nvidia") &&
			len(n) == len("nvidia0") {
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
		t.Errorf("the plan does not show the login filter: %s%s", r.Out, r.Err)
	}
	l.expectOpens(t, "after --check", nobody, allFour...)
	apply(t, l.Node, closedLogins)
	l.expectOpens(t, "with the login filter", nobody, "nvidia1")
	l.expectOpens(t, "with the login filter", 0, allFour...)
	var unmanaged []string // GPU 1
	nodes, err := filepath.Glob(filepath.Join(l.Root(), "sys/bus/pci/devices", status(t, l.Node).GPUs[1].PCI, "drm/*"))
	for _, n := range nodes {
		unmanaged = append(unmanaged, "open "+filepath.Base(n))
	}
	out, err2 := l.command(t, nobody, "user-65534", "sh", "-c", fmt.Sprintf(openGraphics, l.Root())).Output()
	if err := errors.Join(err, err2); err != nil || len(nodes) != 2 || strings.TrimSpace(string(out)) != strings.Join(unmanaged, "\n") {
		t.Errorf("a login opens the graphics nodes %q, want %q: %v", out, unmanaged, err)
	}
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

	// A lease opens its GPU, because it is outside the logins.
	if got, want := opened(t, l.Node, "whole"), []string{"nvidia-uvm", "nvidia3", "nvidiactl"}; !slices.Equal(got, want) {
		t.Errorf("a lease opens %v, want %v", got, want)
	}

	// The login filter stays active without the daemon, and the next daemon changes nothing.
	l.KillDaemon()
	l.expectOpens(t, "with the daemon dead", nobody, "nvidia1")
	if err := l.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	l.expectOpens(t, "with another daemon", nobody, "nvidia1")
	if after := counters(t, l.Node); after["login-filter.writes"]+after["steps"] != 0 {
		t.Errorf("the next daemon wrote %v", after)
	}

	// A program that is detached from outside is attached again.
	if removed, err := device.RemoveLoginFilter(l.dir); err != nil || !removed {
		t.Fatalf("%v, %v", removed, err)
	}
	l.expectOpens(t, "with the program detached", nobody, allFour...)
	if r := l.CLI(soon(t), "config", "reload"); r.Code != api.ExitOK {
		t.Fatal(r.Err)
	}
	l.expectOpens(t, "corrected", nobody, "nvidia1")

	r = l.CLIIn(soon(t), replaced(t, closedLogins, "isolation: {logins: closed}", "isolation: {logins: open}"), "apply", "-f", "-")
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

// With a lease of a process in a login, all logins of its user can open the GPU of the lease until the lease ends. Logins of
// other users cannot.
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

// At boot the program is attached before the daemon and the driver, and denies all GPUs. The daemon then restricts it to the
// managed GPUs.
func TestLoginFilterAtBoot(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	attach := func() string {
		t.Helper()
		out, err := exec.Command(
			filepath.Join(l.Bin, "gpushared"), "-attach-login-filter", "-settings", filepath.Join(l.Dir, "gpushared.yaml"),
		).CombinedOutput()
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
		t.Errorf("with a running daemon: %s", out)
	}
	l.expectOpens(t, "with a running daemon", nobody, "nvidia1")

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

	// A damaged state may have requested the login filter.
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
	awaitStatus(t, l.Node, "a login filter that the spec does not request is not reported", func(s *api.Status) bool {
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
	awaitStatus(t, n, "a missing login filter is not reported", func(s *api.Status) bool {
		return slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool {
			return c.Kind == "login-filter" && strings.Contains(c.Message, "logins have access to managed GPUs")
		})
	})
	if r := n.CLI(soon(t), "status", "--exit-code"); r.Code != api.ExitDegraded {
		t.Errorf("status --exit-code gives %d", r.Code)
	}
}

// The cgroup of logins may be created after the spec is applied: the login filter is attached when it exists, and until then a
// condition reports it.
func TestLoginFilterOfALaterCgroup(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	if err := os.Remove(l.dir); err != nil {
		t.Fatal(err)
	}
	apply(t, l.Node, closedLogins)
	awaitStatus(t, l.Node, "the missing cgroup is not reported", func(s *api.Status) bool {
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
	l.expectOpens(t, "after its cgroup was created", nobody, "nvidia1")
	if r := l.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "a login filter is active on "+l.cg) {
		t.Errorf("doctor: %s%s", r.Out, r.Err)
	}
}

// A unit of isolation.units is closed as logins are: its commands of users open a managed GPU only with a lease. The filter is
// attached again when the unit has a new cgroup, and removed when the spec or the node does not need it.
func TestUnitsAreClosedAsLoginsAre(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	h, err := cgroup.FindHierarchy()
	if err != nil {
		t.Fatal(err)
	}
	unit := fmt.Sprintf("gpu-cron-%d.service", os.Getpid())
	dir := h.Dir("/" + unit)
	create := func() {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	create()
	t.Cleanup(func() {
		if err := errors.Join(h.Kill(context.Background(), "/"+unit), h.Remove("/"+unit)); err != nil {
			t.Error(err)
		}
	})
	command := func(uid uint32, argv ...string) *exec.Cmd {
		t.Helper()
		cg, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cg.Close() })
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			UseCgroupFD: true,
			CgroupFD:    int(cg.Fd()),
			Credential:  &syscall.Credential{Uid: uid, Gid: uid},
		}
		return cmd
	}
	expect := func(when string, uid uint32, want ...string) {
		t.Helper()
		if got := openedBy(t, command(uid, "sh", "-c", fmt.Sprintf(openNodes, l.Root()))); !slices.Equal(got, want) {
			t.Errorf("%s: a command of user %d in the unit opens %v, want %v", when, uid, got, want)
		}
	}
	expect("before", nobody, allFour...)
	spec := replaced(t, closedLogins, "logins: closed", "logins: closed, units: ["+unit+", missing-at.service]")
	if r := l.CLIIn(soon(t), spec, "apply", "-f", "-", "--check"); r.Code != api.ExitOK || !strings.Contains(r.Out, "to /"+unit) ||
		strings.Contains(r.Out, "missing-at") {
		t.Errorf("the plan: %s%s", r.Out, r.Err)
	}
	apply(t, l.Node, spec)
	expect("closed", nobody, "nvidia1")
	expect("closed", 0, allFour...)
	if r := l.CLIIn(soon(t), spec, "apply", "-f", "-"); !strings.Contains(r.Out, "no changes") {
		t.Errorf("the second apply: %s%s", r.Out, r.Err)
	}
	if s := status(t, l.Node); !slices.Equal(s.Node.ClosedTo, []string{"/" + unit, l.cg}) &&
		!slices.Equal(s.Node.ClosedTo, []string{l.cg, "/" + unit}) {
		t.Errorf("the status: closed to %v", s.Node.ClosedTo)
	}
	if r := l.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "filter is active on "+unit) ||
		!strings.Contains(r.Out, "missing-at.service of isolation.units: skipped") {
		t.Errorf("doctor: %s%s", r.Out, r.Err)
	}

	// The exceptions are those of logins.
	job := command(nobody, "sleep", "60")
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = job.Process.Kill() // It may have ended.
		_ = job.Wait()
	})
	r := l.CLI(soon(t), "lease", "attach", "--pid", strconv.Itoa(job.Process.Pid), "-t", "red", "--grant", "whole")
	if r.Code != api.ExitOK {
		t.Fatalf("exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	expect("with a lease", nobody, "nvidia1", "nvidia3")
	expect("of another user", games, "nvidia1")
	if r := l.CLI(soon(t), "lease", "stop", status(t, l.Node).Leases[0].ID); r.Code != api.ExitOK {
		t.Fatalf("exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	expect("after the lease", nobody, "nvidia1")

	// The unit is started again.
	if err := errors.Join(h.Kill(soon(t), "/"+unit), h.Remove("/"+unit)); err != nil {
		t.Fatal(err)
	}
	create()
	if r := l.CLI(soon(t), "config", "reload"); r.Code != api.ExitOK {
		t.Fatal(r.Err)
	}
	expect("started again", nobody, "nvidia1")
	if c := counters(t, l.Node); c["drift.corrected"] != 0 {
		t.Errorf("the start of a unit counts as drift: %v", c)
	}

	apply(t, l.Node, replaced(t, closedLogins, "logins: closed", "logins: closed, units: []"))
	expect("with units: []", nobody, allFour...)
	apply(t, l.Node, spec)
	expect("closed once more", nobody, "nvidia1")
	if r := l.CLI(soon(t), "unmanage"); r.Code != api.ExitOK {
		t.Fatalf("unmanage: %s%s", r.Out, r.Err)
	}
	expect("unmanaged", nobody, allFour...)
}
