package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// outside is a running program without a lease.
type outside struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (o *outside) pid() int { return o.cmd.Process.Pid }

func (o *outside) living() bool {
	select {
	case <-o.done:
		return false
	default:
		return true
	}
}

// startOutside starts a program as uid 0 or as another user.
func startOutside(t *testing.T, n *harness.Node, uid uint32, argv ...string) *outside {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = n.Environ(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := &outside{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		_ = cmd.Wait() // Its state has the result.
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // It may have ended.
		<-o.done
	})
	return o
}

// awaitOnGPU waits until status lists a process on a GPU and condition returns true for it.
func awaitOnGPU(t *testing.T, n *harness.Node, gpu, pid int, condition func(api.ProcessStatus) bool) {
	t.Helper()
	awaitStatus(t, n, fmt.Sprintf("process %d is not listed on GPU %d as expected", pid, gpu), func(s *api.Status) bool {
		return slices.ContainsFunc(s.GPUs[gpu].Processes, func(p api.ProcessStatus) bool { return p.PID == pid && condition(p) })
	})
}

// threadOf is a thread of a process that is not its first one.
func threadOf(t *testing.T, pid int) (tid int) {
	t.Helper()
	err := harness.Await(soon(t), 10*time.Millisecond, "the process has no second thread", func() (bool, error) {
		threads, err := procfs.Threads(pid)
		for _, at := range threads {
			if at.TID != pid {
				tid = at.TID
			}
		}
		return tid != 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tid
}

// attach attaches and returns the id of the lease.
func attach(t *testing.T, n *harness.Node, args ...string) string {
	t.Helper()
	r := n.CLI(soon(t), append([]string{"lease", "attach", "--export"}, args...)...)
	_, rest, ok := strings.Cut(r.Out, "export GPUSHARE_LEASE='")
	id, _, _ := strings.Cut(rest, "'")
	if r.Code != 0 || !ok {
		t.Fatalf("attach %v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
	}
	return id
}

// A running process gets a lease: it is not moved, counts for the grant, is recovered by the next daemon, and runs on after a
// release.
func TestAttach(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	uuid := status(t, n).GPUs[2].UUID
	p := startOutside(t, n, 0, n.Burn("--gpu", uuid, "--memory", "1GiB", "--hold")...)

	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"nothing", nil, api.ExitUsage, "--pid"},
		{"no process", []string{"--pid", "4194304"}, api.ExitFailed, "no such process"},
		{
			"a thread",
			[]string{"--pid", fmt.Sprint(threadOf(t, n.SimPID()))},
			api.ExitUsage,
			fmt.Sprintf("it is a thread of process %d: attach that", n.SimPID()),
		},
		{"the first process", []string{"--pid", "1"}, api.ExitUsage, "descendant"},
		{"the daemon", []string{"--pid", fmt.Sprint(n.DaemonPID())}, api.ExitUsage, "it is an ancestor of gpushared"},
		{"the process that started the daemon", []string{"--pid", fmt.Sprint(os.Getpid())}, api.ExitUsage, "it is an ancestor of gpushared"},
		{"a unit without a service manager", []string{"--unit", "cron"}, api.ExitUnreachable, "no service manager"},
		{"a path of no cgroup", []string{"--cgroup", "/../x"}, api.ExitUsage, "not the path of a cgroup"},
		{"an unknown grant", []string{"--pid", fmt.Sprint(p.pid()), "-t", "red", "--grant", "none"}, api.ExitFailed, "none"},
	} {
		if r := n.CLI(
			soon(t),
			append([]string{"lease", "attach", "-t", "red"}, c.args...)...); r.Code != c.code ||
			!strings.Contains(r.Err, c.says) {
			t.Errorf("%s: attach exits with %d, want %d and %q: %s%s", c.name, r.Code, c.code, c.says, r.Out, r.Err)
		}
	}

	id := attach(t, n, "--pid", fmt.Sprint(p.pid()), "-t", "red", "--grant", "part", "--", "notebook")
	awaitOnGPU(t, n, 2, p.pid(), func(s api.ProcessStatus) bool { return s.Lease == id && s.Tenant == "red" })
	s := awaitStatus(t, n, "its memory does not count", func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Used >= 1<<30
	})
	l := leaseByID(s, id)
	if l.Origin != api.OriginAttached || l.State != api.LeaseRunning || l.PID != p.pid() || !slices.Equal(l.Command, []string{"notebook"}) {
		t.Errorf("the lease is %+v", l)
	}
	if l.Share == nil || l.Share.Enforced || l.Isolation.Freeze || l.Isolation.Devices {
		t.Errorf("it reports a restriction as enforced that is not: %+v, share %+v", l.Isolation, l.Share)
	}
	if missing := strings.Join(l.Isolation.NotEnforced, "\n"); !strings.Contains(missing, "device rules: ") ||
		!strings.Contains(missing, "its time share: ") {
		t.Errorf("it does not say what is not enforced: %s", missing)
	}
	if r := n.CLI(
		soon(t), "lease", "attach", "--pid", fmt.Sprint(p.pid()), "-t", "blue", "--grant", "part",
	); r.Code != api.ExitConflict ||
		!strings.Contains(r.Err, id) {
		t.Errorf("attached twice: exit code %d: %s", r.Code, r.Err)
	}

	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	events := follow(t, n)
	if l := leaseByID(status(t, n), id); l == nil || l.Origin != api.OriginAttached || len(l.Isolation.NotEnforced) == 0 {
		t.Fatalf("the next daemon knows it as %+v", l)
	}
	if r := n.CLI(soon(t), "lease", "release", id); r.Code != 0 {
		t.Fatalf("release exits with %d: %s", r.Code, r.Err)
	}
	if e := events.await(t, "lease.ended", id); !strings.Contains(e.Message, "released") {
		t.Errorf("its end is reported as %q", e.Message)
	}
	if !p.living() {
		t.Error("the release ended the process")
	}
	awaitOnGPU(t, n, 2, p.pid(), func(s api.ProcessStatus) bool { return s.Lease == "" })
	if r := n.CLI(soon(t), "lease", "release", id); r.Code != api.ExitFailed {
		t.Errorf("released twice: exit code %d: %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "lease", "release", "--missing-ok", id); r.Code != 0 {
		t.Errorf("released twice with --missing-ok: exit code %d: %s", r.Code, r.Err)
	}

	// A stop ends only the processes on the GPU.
	shell := startOutside(t, n, 0, "sh", "-c", strings.Join(n.Burn("--gpu", uuid, "--memory", "1GiB", "--hold"), " ")+"; exec sleep 60")
	id = attach(t, n, "--pid", fmt.Sprint(shell.pid()), "-t", "red", "--grant", "part")
	awaitStatus(
		t, n, "its child is not on the GPU", func(s *api.Status) bool { l := leaseByID(s, id); return l != nil && l.Processes == 1 },
	)
	if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
		t.Fatalf("stop exits with %d: %s", r.Code, r.Err)
	}
	if !shell.living() {
		t.Error("a stop ended a process that was not on the GPU")
	}
	awaitStatus(t, n, "a process is still on the GPU", func(s *api.Status) bool {
		return len(s.GPUs[2].Processes) == 1 && s.GPUs[2].Processes[0].PID == p.pid()
	})

	// A lease ends with its last process.
	id = attach(t, n, "--pid", fmt.Sprint(p.pid()), "-t", "red", "--grant", "part")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	events.await(t, "lease.ended", id)
	awaitStatus(t, n, "the lease is still there", func(s *api.Status) bool { return leaseByID(s, id) == nil })
}

// Members attach their own processes for their own tenant, if the spec lets them. A refusal says nothing of a lease that they
// may not see.
func TestWhoMayAttach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, shared)
	own := startOutside(t, n, 65534, "sleep", "60")
	foreign := startOutside(t, n, 0, "sleep", "60")
	pid := fmt.Sprint(own.pid())
	enter(t, dir, foreign.pid())
	refused := func(what string, code int, says string, args ...string) string {
		t.Helper()
		r := as(t, n, append([]string{"lease", "attach"}, args...)...)
		if r.Code != code || !strings.Contains(r.Err, says) || r.Out != "" {
			t.Errorf("%s: attach exits with %d, want %d and %q: %s%s", what, r.Code, code, says, r.Out, r.Err)
		}
		return r.Err
	}
	// The same answer, whether the target has a lease of another tenant or none.
	type target struct {
		what, says string
		args       []string
	}
	targets := []target{
		{"another user's process", "belongs to another user", []string{"--pid", fmt.Sprint(foreign.pid())}},
		{"another user's cgroup", "may not attach cgroup", []string{"--cgroup", path}},
		{"for another tenant", "you are no member of it", []string{"-t", "red", "--pid", pid}},
		{"for no tenant", "you are no member of it", []string{"-t", "none", "--pid", pid}},
	}
	before := map[string]string{}
	for _, c := range targets {
		before[c.what] = refused(c.what, api.ExitDenied, c.says, c.args...)
	}
	leased := []string{
		attach(t, n, "--cgroup", path, "-t", "red", "--grant", "part"),
		attach(t, n, "--pid", pid, "-t", "red", "--grant", "part"),
	}
	for _, c := range targets {
		if now := refused(c.what, api.ExitDenied, c.says, c.args...); now != before[c.what] {
			t.Errorf("%s: with a lease the answer is %q, without one %q", c.what, now, before[c.what])
		}
	}
	if says := refused(
		"the own process in a lease of another tenant", api.ExitConflict, "it is in a lease already", "--pid", pid,
	); strings.Contains(says, "red") {
		t.Errorf("the refusal names the lease: %s", says)
	}
	for _, id := range leased {
		if r := n.CLI(soon(t), "lease", "release", id); r.Code != 0 {
			t.Fatalf("release exits with %d: %s", r.Code, r.Err)
		}
	}
	r := as(t, n, "lease", "attach", "--export", "--pid", pid, "--grant", "part")
	if r.Code != 0 {
		t.Fatalf("the own process: attach exits with %d: %s", r.Code, r.Err)
	}
	apply(t, n, strings.Replace(shared, "node: {enforce: on}", "node: {enforce: on, isolation: {attach: admin}}", 1))
	second := fmt.Sprint(startOutside(t, n, 65534, "sleep", "60").pid())
	refused("the own process, only for administrators", api.ExitDenied, "isolation.attach: admin", "--pid", second)
	if s := status(t, n); len(s.Leases) != 1 {
		t.Errorf("what was attached before does not remain: %+v", s.Leases)
	}
	attach(t, n, "--pid", second, "-t", "red", "--grant", "part")
}

// newCgroup creates a cgroup outside gpushare.
func newCgroup(t *testing.T) (path, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("creating cgroups needs root")
	}
	mount := unified(t)
	path = fmt.Sprintf("/gpushare-test-%d-%s", os.Getpid(), strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())))
	dir = filepath.Join(mount, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("cannot create a cgroup: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := harness.Await(
			ctx, 10*time.Millisecond, "the cgroup is not removed", func() (bool, error) { return os.Remove(dir) == nil, nil },
		)
		if err != nil {
			t.Error(err)
		}
	})
	return path, dir
}

func enter(t *testing.T, dir string, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Of a cgroup that uses too much GPU memory the process that uses the most is stopped. The others and the lease continue, and
// no process is frozen.
func TestAttachedCgroupUsesTooMuch(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, shared)
	uuid := status(t, n).GPUs[2].UUID
	idle := startOutside(t, n, 0, "sleep", "60")
	large := startOutside(t, n, 0, n.Burn("--gpu", uuid, "--memory", "3GiB", "--hold", "--ignore-term")...)
	small := startOutside(t, n, 0, n.Burn("--gpu", uuid, "--memory", "1GiB", "--hold")...)
	for _, o := range []*outside{idle, large, small} {
		enter(t, dir, o.pid())
	}
	id := attach(t, n, "--cgroup", path, "-t", "blue", "--grant", "part") // granted 2 GiB
	if l := leaseByID(status(t, n), id); l == nil || l.Isolation.Cgroup != path {
		t.Fatalf("the lease is %+v", l)
	}
	select {
	case <-large.done:
	case <-soon(t).Done():
		t.Fatalf("the largest is not stopped: %+v", leaseByID(status(t, n), id))
	}
	if s, ok := large.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL: it ignores SIGTERM", large.cmd.ProcessState)
	}
	s := awaitStatus(t, n, "its overuse is still reported", func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Stage == "" && l.Processes == 1 && l.GPUMemory.Used < l.GPUMemory.Limit
	})
	if !idle.living() || !small.living() {
		t.Error("more than the one process was stopped")
	}
	if notices := strings.Join(leaseByID(s, id).Notices, "\n"); !strings.Contains(notices, fmt.Sprintf("pid %d", large.pid())) {
		t.Errorf("no notice names the process: %s", notices)
	}
	for _, o := range []*outside{idle, small} {
		if err := o.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	awaitStatus(t, n, "the lease outlives its last process", func(s *api.Status) bool { return leaseByID(s, id) == nil })
}

// A member may attach only processes of their own, and may not release what an administrator attached.
func TestRolesOfAttach(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, shared)
	mine, theirs := startOutside(t, n, 65534, "sleep", "60"), startOutside(t, n, 0, "sleep", "60")
	may := func(want int, what string, args ...string) harness.Result {
		t.Helper()
		r := as(t, n, append([]string{"lease"}, args...)...)
		if r.Code != want {
			t.Errorf("%s: exit code %d, want %d: %s%s", what, r.Code, want, r.Out, r.Err)
		}
		return r
	}
	may(api.ExitDenied, "root's process", "attach", "--pid", fmt.Sprint(theirs.pid()), "--grant", "part")
	may(api.ExitDenied, "a unit", "attach", "--unit", "cron", "--grant", "part")
	may(api.ExitDenied, "another tenant's grant", "attach", "--pid", fmt.Sprint(mine.pid()), "-t", "red", "--grant", "part")
	enter(t, dir, mine.pid())
	may(api.ExitDenied, "a cgroup that is root's", "attach", "--cgroup", path, "--grant", "part")
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	enter(t, dir, theirs.pid())
	may(api.ExitDenied, "a cgroup with root's process in it", "attach", "--cgroup", path, "--grant", "part")
	enter(t, unified(t), theirs.pid())
	r := may(0, "their own cgroup", "attach", "--cgroup", path, "--grant", "part", "--export")
	_, rest, _ := strings.Cut(r.Out, "export GPUSHARE_LEASE='")
	id, _, _ := strings.Cut(rest, "'")
	may(api.ExitConflict, "a process of it", "attach", "--pid", fmt.Sprint(mine.pid()), "--grant", "part")
	may(0, "to release it", "release", id)

	id = attach(t, n, "--pid", fmt.Sprint(mine.pid()), "-t", "blue", "--grant", "part")
	if l := leaseByID(status(t, n), id); l == nil || l.UID != 65534 {
		t.Errorf("root attached a process of the member, and the lease is %+v", l)
	}
	for _, verb := range []string{"release", "stop"} {
		may(api.ExitDenied, verb+" of what root attached", verb, id)
	}
	_, run := begin(t, n, "blue", "part", "sleep", "60")
	if r := n.CLI(soon(t), "lease", "release", run); r.Code != api.ExitUsage || !strings.Contains(r.Err, "was not attached") {
		t.Errorf("releasing a run exits with %d: %s", r.Code, r.Err)
	}
	if !mine.living() {
		t.Error("the process of the member ended")
	}
}

// explain lists the rules that are enforced and those that are not, with the reason, for an isolated lease, for a lease
// without isolation, and for their tenant.
func TestExplain(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	_, run := begin(t, n, "blue", "part", "sleep", "60")
	p := startOutside(t, n, 0, "sleep", "60")
	attached := attach(t, n, "--pid", fmt.Sprint(p.pid()), "-t", "blue", "--grant", "part")
	rules := func(name string) map[string]api.Rule {
		t.Helper()
		e, err := n.Client().Explain(soon(t), name)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]api.Rule{}
		for _, r := range e.Rules {
			if r.Enforced == (r.By == "") || r.Enforced == (r.Reason != "") {
				t.Errorf("%s: a rule needs either the mechanism that enforces it or the reason why it is not enforced: %+v", name, r)
			}
			out[r.What] = r
		}
		return out
	}
	isolated, loose := rules(run), rules(attached)
	for _, what := range []string{"processes", "devices", "GPU memory", "GPU time"} {
		if isolated[what].What == "" || loose[what].What == "" {
			t.Errorf("%s is not explained: %+v, %+v", what, isolated[what], loose[what])
		}
	}
	if loose["GPU time"].Enforced || loose["devices"].Enforced || !loose["GPU memory"].Enforced {
		t.Errorf("of an attached process only the GPU memory is enforced (overuse is kill): %+v", loose)
	}
	if freezes := !strings.HasPrefix(status(t, n).Node.Adapter, "processes"); isolated["GPU time"].Enforced != freezes ||
		isolated["processes"].Enforced != freezes {
		t.Errorf("of a run on %s: %+v", status(t, n).Node.Adapter, isolated)
	}
	if r := rules("red"); r["devices of part"].What == "" || r["devices of cut"].What == "" {
		t.Errorf("a tenant is explained as %+v", r)
	}
	if r := n.CLI(soon(t), "explain", "unknown"); r.Code != api.ExitFailed || !strings.Contains(r.Err, "no tenant") {
		t.Errorf("explain of an unknown name exits with %d: %s", r.Code, r.Err)
	}
	if os.Geteuid() == 0 {
		if r := as(t, n, "explain", "red"); r.Code != api.ExitFailed {
			t.Errorf("explain of another tenant succeeds for a member: %s", r.Out)
		}
		if r := as(t, n, "explain", run); r.Code != 0 {
			t.Errorf("explain of a lease of the own tenant exits with %d: %s", r.Code, r.Err)
		}
	}
}

// What is attached is placed where its request says, and ends after the time that it says, as what is run.
func TestAttachedForATime(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	p := startOutside(t, n, 0, "sleep", "600")
	args := []string{"lease", "attach", "--pid", fmt.Sprint(p.pid()), "-t", "red", "--grant", "part"}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--time", "0"}, "cannot attach a lease for a max_time of 0"},
		{[]string{"--gpu", "0"}, "GPU 0"},
		{[]string{"--gpu", "77"}, "77"},
	} {
		if r := n.CLI(soon(t), slices.Concat(args, c.args)...); r.Code == 0 || !strings.Contains(r.Err, c.says) {
			t.Errorf("attach %v exits with %d, want a refusal with %q: %s%s", c.args, r.Code, c.says, r.Out, r.Err)
		}
	}
	uuid := status(t, n).GPUs[2].UUID
	id := attach(t, n, "--pid", fmt.Sprint(p.pid()), "-t", "red", "--grant", "part", "--gpu", uuid[:12], "--time", "2s")
	l := leaseByID(status(t, n), id)
	if l == nil || l.MaxTime == nil || l.Expires == nil || !slices.Equal(l.GPUs, []string{uuid}) {
		t.Fatalf("the lease is %+v", l)
	}
	awaitStatus(t, n, "it does not end after its time", func(s *api.Status) bool { return leaseByID(s, id) == nil })
	r := n.CLI(soon(t), "lease", "show", id[:len(id)-1])
	if r.Code != 0 || !strings.Contains(r.Out, "its time has passed") {
		t.Errorf("the ended lease is shown with %d: %s%s", r.Code, r.Out, r.Err)
	}
}
