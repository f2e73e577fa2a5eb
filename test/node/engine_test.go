package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// engineSpec has an engine, nobody, who is in no tenant.
const engineSpec = `version: v1
node: {enforce: on, engine: {members: {users: [nobody]}}}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 3g.20gb]}}
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: exclusive}
tenants:
  - name: red
    overuse: {grace: 500ms}
    grants:
      - {name: cut, mig: 3g.20gb, max_leases: 2}
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}, gpus: {index: 2}}
      - {name: whole, exclusive: 1}
`

// keyed is what 'lease attach --key' answers with.
func keyed(t *testing.T, n *harness.Node, args ...string) api.LeaseGrant {
	t.Helper()
	var g api.LeaseGrant
	r := n.CLI(soon(t), append([]string{"--json", "lease", "attach", "-t", "red"}, args...)...)
	if r.Code != 0 {
		t.Fatalf("attach %v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
	}
	if err := json.Unmarshal([]byte(r.Out), &g); err != nil || g.Lease == nil || g.Lease.Engine == nil {
		t.Fatalf("attach %v prints %q: %v", args, r.Out, err)
	}
	return g
}

// byKey is what 'lease show --key' prints of a lease.
func byKey(t *testing.T, n *harness.Node, key string) api.Lease {
	t.Helper()
	var l api.Lease
	r := n.CLI(soon(t), "--json", "lease", "show", "--key", key)
	if err := json.Unmarshal([]byte(r.Out), &l); r.Code != 0 || err != nil {
		t.Fatalf("show --key %s exits with %d: %s%s, %v", key, r.Code, r.Out, r.Err, err)
	}
	return l
}

// belowCgroup creates a cgroup below another one, as slurmd and the kubelet do after the lease was requested.
func belowCgroup(t *testing.T, dir string, names ...string) string {
	t.Helper()
	for _, name := range names {
		dir = filepath.Join(dir, name)
		at := dir
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			err := harness.Await(
				ctx, 10*time.Millisecond, "a cgroup is not removed", func() (bool, error) { return os.Remove(at) == nil, nil },
			)
			if err != nil {
				t.Error(err)
			}
		})
	}
	return dir
}

// A key is one lease: in one daemon, in the next one, and when it has ended.
func TestKeyIsOneLease(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	job := startOutside(t, n, 0, "sleep", "60")
	enter(t, dir, job.pid())
	const key = "slurm:lab:42:0"
	args := []string{
		"--key",
		key,
		"--cgroup",
		path,
		"--grant",
		"part",
		"--user",
		"nobody",
		"--account",
		"physics",
		"--gpu-memory",
		"3GiB",
		"--share",
		"10%",
	}
	first := keyed(t, n, args...)
	l := first.Lease
	if l.State != api.LeaseRunning || !l.Engine.Bound || l.User != "nobody" || l.UID != 65534 || l.Engine.Account != "physics" ||
		l.Isolation.Cgroup != path || l.GPUMemory == nil || l.GPUMemory.Limit != 3<<30 || first.Environment["CUDA_VISIBLE_DEVICES"] == "" {
		t.Fatalf("the lease is %+v, %+v, memory %+v, environment %v", l, l.Engine, l.GPUMemory, first.Environment)
	}
	if again := keyed(
		t,
		n,
		args...); again.Lease.ID != l.ID ||
		again.Environment["CUDA_VISIBLE_DEVICES"] != first.Environment["CUDA_VISIBLE_DEVICES"] {
		t.Errorf("the same key has lease %s and then %s", l.ID, again.Lease.ID)
	}
	if again := keyed(t, n, "--key", key); again.Lease.ID != l.ID {
		t.Errorf("the key alone has lease %s and not %s", again.Lease.ID, l.ID)
	}
	s := awaitStatus(t, n, "the share of the lease is not shown", func(s *api.Status) bool {
		x := leaseByID(s, l.ID)
		return x != nil && x.Share != nil
	})
	if e := leaseByID(s, l.ID).Share.Entitled; e != 10 {
		t.Errorf("it is entitled to %v %%, want 10", e)
	}
	for _, c := range []struct {
		name, says string
		args       []string
	}{
		{"other memory", "its gpu_memory is 4GiB, and the lease was requested with 3GiB", []string{"--gpu-memory", "4GiB"}},
		{"another user", "its user is root, and the lease was requested with nobody", []string{"--user", "root"}},
		{"another account", "its account is biology", []string{"--account", "biology"}},
		{"another grant", "its grant is whole", []string{"--grant", "whole"}},
		{"another cgroup", "its cgroup is /other", []string{"--cgroup", "/other"}},
	} {
		r := n.CLI(soon(t), append([]string{"lease", "attach", "-t", "red", "--key", key}, c.args...)...)
		if r.Code != api.ExitConflict || !strings.Contains(r.Err, c.says) {
			t.Errorf("%s: attach exits with %d: %s", c.name, r.Code, r.Err)
		}
	}
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if again := keyed(t, n, args...); again.Lease.ID != l.ID || again.Lease.GPUMemory.Limit != 3<<30 {
		t.Errorf("after a restart the key has lease %+v", again.Lease)
	}
	if r := n.CLI(soon(t), "lease", "release", "--key", key); r.Code != 0 || !job.living() {
		t.Fatalf("release exits with %d: %s", r.Code, r.Err)
	}
	for _, when := range []string{"in the same daemon", "in the next one"} {
		if r := n.CLI(soon(t), append([]string{"lease", "attach", "-t", "red"}, args...)...); r.Code != api.ExitConflict ||
			!strings.Contains(r.Err, l.ID+" ended at") {
			t.Errorf("a late second request %s exits with %d: %s", when, r.Code, r.Err)
		}
		if x := byKey(t, n, key); x.ID != l.ID || x.Ended == nil || !strings.Contains(x.Reason, "released by") {
			t.Errorf("the ended lease is %+v", x)
		}
		if r := n.CLI(soon(t), "lease", "release", "--key", key); r.Code != 0 {
			t.Errorf("a second release %s exits with %d: %s", when, r.Code, r.Err)
		}
		n.KillDaemon()
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	if r := n.CLI(soon(t), "lease", "release", "--key", "slurm:lab:43:0"); r.Code != api.ExitFailed {
		t.Errorf("the release of an unknown key exits with %d: %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "lease", "release", "--missing-ok", "--key", "slurm:lab:43:0"); r.Code != 0 {
		t.Errorf("with --missing-ok it exits with %d: %s", r.Code, r.Err)
	}
}

// A lease may be there before its cgroup: it keeps its place, and is bound when the cgroup has a process, also by the next daemon.
func TestKeyedLeaseIsBoundLater(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	events := follow(t, n)
	named := keyed(t, n, "--key", "slurm:lab:1:0", "--grant", "whole", "--cgroup", path+"/scope/job_1").Lease
	events.await(t, "lease.placed", named.ID)
	unnamed := keyed(t, n, "--key", "kubernetes:uid-1", "--grant", "cut").Lease
	third := keyed(t, n, "--key", "slurm:lab:3:0", "--grant", "part", "--cgroup", path+"/scope/job_3").Lease
	for _, l := range []*api.Lease{named, unnamed, third} {
		if l.State != api.LeasePlaced || l.Engine.Bound || l.Engine.BindBy == nil {
			t.Fatalf("%s is %+v, %+v", l.Engine.Key, l, l.Engine)
		}
	}
	if r := n.CLI(soon(t), "run", "-t", "red", "--grant", "whole", "--", "true"); r.Code == 0 || !strings.Contains(r.Err, "lease") {
		t.Errorf("another lease gets the place of one without processes: %d, %s", r.Code, r.Err)
	}
	scope := belowCgroup(t, dir, "scope")
	task := belowCgroup(t, scope, "job_1", "step", "task")
	job := startOutside(t, n, 0, "sleep", "60")
	enter(t, task, job.pid())
	events.await(t, "lease.started", named.ID)
	if l := byKey(t, n, "slurm:lab:1:0"); l.State != api.LeaseRunning || !l.Engine.Bound || l.Isolation.Cgroup != path+"/scope/job_1" {
		t.Errorf("the lease is %+v", l)
	}

	n.KillDaemon()
	podDir := belowCgroup(t, scope, "pod")
	pod := startOutside(t, n, 0, "sleep", "60")
	enter(t, podDir, pod.pid())
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if l := byKey(t, n, "kubernetes:uid-1"); l.ID != unnamed.ID || l.State != api.LeasePlaced {
		t.Errorf("the next daemon knows it as %+v", l)
	}
	bound := keyed(t, n, "--key", "kubernetes:uid-1", "--cgroup", path+"/scope/pod").Lease
	if bound.ID != unnamed.ID || !bound.Engine.Bound || bound.State != api.LeaseRunning {
		t.Errorf("the cgroup that came later is bound to %+v", bound)
	}
	lateDir := belowCgroup(t, scope, "job_3")
	late := startOutside(t, n, 0, "sleep", "60")
	enter(t, lateDir, late.pid())
	awaitStatus(t, n, "what waited over a restart is not bound", func(s *api.Status) bool {
		l := leaseByID(s, third.ID)
		return l != nil && l.State == api.LeaseRunning
	})
	for _, o := range []*outside{job, pod, late} {
		if err := o.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	awaitStatus(t, n, "leases outlive their jobs", func(s *api.Status) bool { return len(s.Leases) == 0 })
}

// A lease whose cgroup never comes has its place only until its time, and its key gets no new one.
func TestKeyedLeaseWithoutProcessesEnds(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, engineSpec)
	events := follow(t, n)
	l := keyed(t, n, "--key", "slurm:lab:7:0", "--grant", "whole", "--bind-timeout", "1s").Lease
	if e := events.await(t, "lease.ended", l.ID); !strings.Contains(e.Message, "no process") {
		t.Errorf("its end is reported as %q", e.Message)
	}
	if x := byKey(t, n, "slurm:lab:7:0"); x.ID != l.ID || x.State != api.LeaseEnded || !strings.Contains(x.Reason, "no process") {
		t.Errorf("the ended lease is %+v", x)
	}
	if r := n.CLI(soon(t), "lease", "attach", "-t", "red", "--key", "slurm:lab:7:0", "--grant", "whole"); r.Code != api.ExitConflict {
		t.Errorf("its key gets a new lease: %d, %s%s", r.Code, r.Out, r.Err)
	}
	second := keyed(t, n, "--key", "slurm:lab:7:1", "--grant", "whole").Lease
	if r := n.CLI(soon(t), "lease", "stop", second.ID); r.Code != 0 {
		t.Errorf("a lease without processes cannot be stopped: %s", r.Err)
	}
	events.await(t, "lease.ended", second.ID)
	third := keyed(t, n, "--key", "slurm:lab:7:2", "--grant", "whole").Lease
	if r := n.CLI(soon(t), "lease", "release", "--key", "slurm:lab:7:2"); r.Code != 0 {
		t.Errorf("a lease without processes cannot be released: %s", r.Err)
	}
	events.await(t, "lease.ended", third.ID)
}

// The engine has chosen the place: the lease is there or nowhere, and a refusal names who is there.
func TestEngineChoosesThePlace(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, engineSpec)
	s := status(t, n)
	second := s.GPUs[0].MIG.Instances[1]
	attach := func(key string, args ...string) harness.Result {
		t.Helper()
		return n.CLI(soon(t), append([]string{"lease", "attach", "-t", "red", "--key", "slurm:lab:" + key}, args...)...)
	}
	l := keyed(t, n, "--key", "slurm:lab:1", "--instance", second.UUIDs[0], "--grant", "cut").Lease
	if len(l.Devices) != 1 || l.Devices[0] != second.UUIDs[0] {
		t.Fatalf("the engine chose %s, and the lease has %v", second.UUIDs[0], l.Devices)
	}
	whole := keyed(t, n, "--key", "slurm:lab:2", "--gpu", "3").Lease
	if len(whole.GPUs) != 1 || whole.GPUs[0] != s.GPUs[3].UUID || whole.Grant != "whole" {
		t.Fatalf("the engine chose GPU 3, and the lease is %+v", whole)
	}
	for _, c := range []struct {
		name string
		code int
		says string
		args []string
	}{
		{"an instance in use", api.ExitUnreachable, l.ID, []string{"--gpu", "0", "--instance", fmt.Sprint(second.Placement.Start)}},
		{"a GPU in use", api.ExitUnreachable, whole.ID, []string{"--gpu", "3", "--user", "nobody"}},
		{"a GPU that no grant contains", api.ExitFailed, "none of its grants may use that GPU", []string{"--gpu", "1"}},
		{"an instance that is not there", api.ExitFailed, "there is none", []string{"--instance", "MIG-none"}},
		{"two GPUs where the grant has one", api.ExitUsage, "the engine chose 2", []string{"--gpu", "3,2", "--grant", "whole"}},
		{"more memory than the grant", api.ExitUsage, "grant part has 8 GiB", []string{"--grant", "part", "--gpu-memory", "9GiB"}},
		{"more share than the grant", api.ExitUsage, "grant part has 30%", []string{"--grant", "part", "--share", "31%"}},
		{"memory of a whole GPU", api.ExitUsage, "whole GPUs", []string{"--grant", "whole", "--gpu-memory", "1GiB"}},
		{"an unknown user", api.ExitFailed, "cannot find user", []string{"--user", "no-such-user-here"}},
		{"a key without an engine", api.ExitUsage, "ENGINE:NAME", []string{"--key", "42"}},
	} {
		if r := attach("3", c.args...); r.Code != c.code || !strings.Contains(r.Err, c.says) {
			t.Errorf("%s: attach exits with %d, want %d and %q: %s%s", c.name, r.Code, c.code, c.says, r.Out, r.Err)
		}
	}
	keyed(t, n, "--key", "slurm:lab:4", "--grant", "part", "--gpu-memory", "5GiB")
	if r := attach(
		"5",
		"--grant",
		"part",
		"--gpu-memory",
		"4GiB",
	); r.Code != api.ExitUnreachable ||
		!strings.Contains(r.Err, "3 GiB of its 8 GiB left") {
		t.Errorf("two leases have more than their grant: %d, %s", r.Code, r.Err)
	}
	keyed(t, n, "--key", "slurm:lab:5", "--grant", "part", "--gpu-memory", "3GiB")
	if r := n.CLI(soon(t), "run", "-t", "red", "--grant", "part", "--", "true"); r.Code == 0 {
		t.Error("a command gets a lease of a grant that has nothing left")
	}
}

// Only an engine of the spec and administrators have keyed leases; a member of a tenant never has one.
func TestWhoIsAnEngine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, engineSpec)
	const key = "slurm:lab:1:0"
	if r := as(t, n, "lease", "attach", "--key", key, "-t", "red", "--grant", "whole", "--user", "0"); r.Code != 0 {
		t.Fatalf("the engine: attach exits with %d: %s", r.Code, r.Err)
	}
	if l := byKey(t, n, key); l.User != "root" {
		t.Errorf("its user is %q", l.User)
	}
	if r := as(t, n, "lease", "show", "--key", key); r.Code != 0 || !strings.Contains(r.Out, key) {
		t.Errorf("the engine: show exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := as(t, n, "status"); r.Code != 0 {
		t.Errorf("the engine reads no status: %d, %s", r.Code, r.Err)
	}
	if r := as(t, n, "run", "-t", "red", "--grant", "part", "--", "true"); r.Code == 0 || !strings.Contains(r.Err, "may not run on a GPU") {
		t.Errorf("the engine runs commands: %d, %s", r.Code, r.Err)
	}
	if r := as(t, n, "lease", "release", "--key", key); r.Code != 0 {
		t.Errorf("the engine: release exits with %d: %s", r.Code, r.Err)
	}
	member := replaced(
		t,
		replaced(t, engineSpec, ", engine: {members: {users: [nobody]}}", ""),
		"- name: red\n",
		"- name: red\n    members: {users: [nobody]}\n",
	)
	apply(t, n, member)
	for _, args := range [][]string{
		{"lease", "attach", "--key", "slurm:lab:2:0", "--grant", "whole"},
		{"lease", "show", "--key", key},
		{"lease", "release", "--key", key},
	} {
		if r := as(t, n, args...); r.Code != api.ExitDenied || !strings.Contains(r.Err, "node.engine") {
			t.Errorf("a member: %v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
		}
	}
	both := replaced(t, engineSpec, "- name: red\n", "- name: red\n    members: {users: [nobody]}\n")
	file := filepath.Join(t.TempDir(), "both.yaml")
	if err := os.WriteFile(file, []byte(both), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "apply", "-f", file); r.Code == 0 || !strings.Contains(r.Err, "an engine is in no tenant") {
		t.Errorf("an engine that is in a tenant is accepted: %d, %s", r.Code, r.Err)
	}
}

// The commands of the page are what a Prolog and an Epilog run: register, bind, show, release.
func TestKeyedLeaseAsDocumented(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(
		t,
		n,
		replaced(
			t,
			engineSpec,
			"name: part, timeslice: {share: 30%, gpu_memory: 8GiB}",
			"name: dev, timeslice: {share: 30%, gpu_memory: 16GiB}",
		),
	)
	const key = "slurm:lab:42:0"
	cgroup := filepath.Join(path, "node1_slurmstepd.scope", "job_42")
	job := belowCgroup(t, dir, "node1_slurmstepd.scope", "job_42")
	keyed(t, n, "--key", key, "--user", "nobody", "--account", "physics", "--grant", "dev", "--gpu", "2", "--gpu-memory", "12GiB")
	if r := n.CLI(
		soon(t),
		"lease",
		"attach",
		"--key",
		key,
		"--cgroup",
		cgroup,
	); r.Code != 0 ||
		!strings.Contains(r.Out, "waits for processes") {
		t.Fatalf("naming the cgroup exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	p := startOutside(t, n, 0, "sleep", "60")
	enter(t, job, p.pid())
	awaitStatus(t, n, "the lease is not bound", func(s *api.Status) bool {
		return len(s.Leases) == 1 && s.Leases[0].State == api.LeaseRunning
	})
	r := n.CLI(soon(t), "lease", "show", "--key", key)
	for _, want := range []string{key, "physics", cgroup, "12 GiB"} {
		if r.Code != 0 || !strings.Contains(r.Out, want) {
			t.Errorf("show exits with %d and does not say %s: %s%s", r.Code, want, r.Out, r.Err)
		}
	}
	if r := n.CLI(soon(t), "lease", "release", "--key", key); r.Code != 0 || !p.living() {
		t.Errorf("release exits with %d: %s", r.Code, r.Err)
	}
}

// On a GPU with instances on demand the instance is created where the engine chose, and the second request with the key finds the lease.
func TestEngineChoosesAPlacementOnDemand(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, replaced(t, engineSpec, "layout: [3g.20gb, 3g.20gb]", "dynamic: true, keep: 1h"))
	args := []string{"--key", "kubernetes:claim-1", "--grant", "cut", "--gpu", "0", "--instance", "0"}
	l := keyed(t, n, args...).Lease
	if again := keyed(t, n, args...).Lease; again.ID != l.ID {
		t.Errorf("the second request has lease %s, the first %s", again.ID, l.ID)
	}
	in := awaitChange(t, n).GPUs[0].MIG.Instances
	if len(in) != 1 || in[0].Placement.Start != 0 || len(l.Devices) != 1 || l.Devices[0] != in[0].UUIDs[0] {
		t.Fatalf("the engine chose memory slice 0, and the lease has %v of %+v", l.Devices, in)
	}
	for start, says := range map[string]string{"0": l.ID, "2": "no instance of grant cut begins at memory slice 2"} {
		r := n.CLI(
			soon(t),
			"lease",
			"attach",
			"-t",
			"red",
			"--key",
			"kubernetes:claim-2",
			"--grant",
			"cut",
			"--gpu",
			"0",
			"--instance",
			start,
		)
		if r.Code == 0 || !strings.Contains(r.Err, says) {
			t.Errorf("at memory slice %s attach exits with %d, want %q: %s%s", start, r.Code, says, r.Out, r.Err)
		}
	}
	other := keyed(t, n, "--key", "kubernetes:claim-2", "--grant", "cut", "--gpu", "0", "--instance", "4").Lease
	if len(other.Devices) != 1 || other.Devices[0] == l.Devices[0] || len(awaitChange(t, n).GPUs[0].MIG.Instances) != 2 {
		t.Errorf("the second lease is %+v", other)
	}
}

// A grant does not get less than its leases have for themselves without force: an engine was promised that.
func TestGrantBelowWhatAnEngineWasPromised(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, engineSpec)
	l := keyed(t, n, "--key", "slurm:lab:1", "--grant", "part", "--gpu-memory", "6GiB").Lease
	less := replaced(t, engineSpec, "gpu_memory: 8GiB", "gpu_memory: 4GiB")
	r := n.CLIIn(soon(t), less, "apply", "-f", "-")
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, l.ID) || !strings.Contains(r.Err, "keeps 4 GiB of its own 6 GiB") ||
		!strings.Contains(r.Err, "--force") {
		t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if now := byKey(t, n, "slurm:lab:1"); now.GPUMemory.Limit != 6<<30 {
		t.Errorf("after the refusal it has %d bytes", now.GPUMemory.Limit)
	}
	apply(t, n, replaced(t, engineSpec, "gpu_memory: 8GiB", "gpu_memory: 6GiB")) // It keeps all of its own.
	if r := n.CLIIn(soon(t), less, "apply", "--force", "-f", "-"); r.Code != 0 {
		t.Fatalf("with --force apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if now := byKey(t, n, "slurm:lab:1"); now.GPUMemory.Limit != 4<<30 {
		t.Errorf("after --force it has %d bytes", now.GPUMemory.Limit)
	}
}

// The job, its user and its account are named where leases are: in the status, what is idle, the metrics and the account.
func TestJobsAreNamed(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	job := startOutside(t, n, 0, n.Burn("--memory", "1GiB", "--hold", "--gpu", "2")...)
	enter(t, dir, job.pid())
	const key = "slurm:lab:42:0"
	l := keyed(
		t, n, "--key", key, "--cgroup", path, "--grant", "part", "--user", "nobody", "--account", "physics", "--", "train",
	).Lease
	awaitStatus(t, n, "its memory is not seen", func(s *api.Status) bool {
		at := leaseByID(s, l.ID)
		return at != nil && at.GPUMemory != nil && at.GPUMemory.Used > 0
	})
	if r := n.CLI(soon(t), "lease", "release", "--key", key); r.Code != 0 {
		t.Fatalf("release exits with %d: %s", r.Code, r.Err)
	}
	other := keyed(t, n, "--key", "slurm:lab:43:0", "--cgroup", path, "--grant", "part", "--user", "nobody", "--account", "physics").Lease
	for _, c := range [][]string{
		{"status"}, {"lease", "list"}, {"metrics"}, {"usage", "--by", "user,account,job"}, {"lease", "show", "--key", "slurm:lab:43:0"},
	} {
		r := n.CLI(soon(t), c...)
		for _, want := range []string{"slurm:lab:43:0", "physics", "nobody"} {
			if r.Code != 0 || !strings.Contains(r.Out, want) {
				t.Errorf("%v exits with %d and does not name %s:\n%s%s", c, r.Code, want, r.Out, r.Err)
			}
		}
	}
	var u api.Usage
	r := n.CLI(soon(t), "--json", "usage", "--by", "account,job")
	if err := json.Unmarshal([]byte(r.Out), &u); err != nil || len(u.Rows) != 2 || u.Rows[0].Account != "physics" || u.Rows[0].Job != key ||
		u.Rows[1].Job != "slurm:lab:43:0" {
		t.Errorf("usage by account and job exits with %d, %v: %s%s", r.Code, err, r.Out, r.Err)
	}
	var idle api.Idle
	r = n.CLI(soon(t), "--json", "idle", "--for", "1s")
	if err := json.Unmarshal([]byte(r.Out), &idle); err != nil || len(idle.Uses) == 0 || idle.Uses[0].Job != "slurm:lab:43:0" ||
		idle.Uses[0].Account != "physics" || idle.Uses[0].Lease != other.ID {
		t.Errorf("idle exits with %d, %v: %s%s", r.Code, err, r.Out, r.Err)
	}
}
