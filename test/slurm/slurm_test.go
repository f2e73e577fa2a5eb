//go:build slurm

package slurm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

// deadline is for everything that one test waits for.
const deadline = 3 * time.Minute

const nodeFile = "driver: \"580\"\ngpus:\n  - {model: A100-40, count: 2}\n"

const spec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: timeslice, owner: slurm}
  - {select: {index: 1}, mode: exclusive, owner: slurm}
tenants:
  - name: slurm
    grants:
      - {name: jobs, timeslice: {share: 80%, gpu_memory: 30GiB}, gpus: {index: 0}}
`

// site is a virtual node with a Slurm of its own.
type site struct {
	*testing.T
	node   *harness.Node
	root   string // where Slurm is installed
	dir    string // of its files
	cgroup string // of slurmd and its jobs, in the file system
	scope  string // the jobs' below it
	spank  string // the SPANK plug-in; empty: none
	late   bool   // the cgroup of a job comes after the Prolog, as before 24.05
	plain  bool   // the scripts find gpushare and its socket where they are on a host
}

// unified is where the cgroups of version 2 are.
func unified(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if head, tail, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(tail, "cgroup2 ") {
			return strings.Fields(head)[4]
		}
	}
	t.Skip("no cgroup version 2 is mounted")
	return ""
}

func newSite(t *testing.T, late bool) *site {
	t.Helper()
	return siteOf(t, late, nodeFile, spec)
}

// siteOf is a site with a node and a spec of its own.
func siteOf(t *testing.T, late bool, nodeFile, spec string) *site {
	t.Helper()
	return begun(t, &site{T: t, late: late}, nodeFile, spec)
}

func begun(t *testing.T, s *site, nodeFile, spec string) *site {
	t.Helper()
	root := os.Getenv("SLURM_ROOT")
	if root == "" {
		root = "/"
	}
	for _, program := range []string{"usr/sbin/slurmctld", "usr/sbin/slurmd", "usr/sbin/munged", "usr/bin/sbatch"} {
		if _, err := os.Lstat(filepath.Join(root, program)); err != nil {
			t.Skipf("Slurm is not installed: %v; SLURM_ROOT names a directory where it is", err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("slurmd and chroot need root")
	}
	mount := unified(t)
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte(nodeFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s.root, s.node, s.dir = root, &harness.Node{Bin: bin, File: file}, t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	if err := s.node.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.node.Close(); err != nil {
			t.Error(err)
		}
	})
	s.cgroup = filepath.Join(mount, fmt.Sprintf("gpushare-slurm-%d", os.Getpid()))
	s.scope = filepath.Join(s.cgroup, "node1_slurmstepd.scope")
	if err := os.MkdirAll(s.scope, 0o755); err != nil {
		t.Skipf("cannot create a cgroup: %v", err)
	}
	t.Cleanup(func() {
		jobs, _ := filepath.Glob(filepath.Join(s.scope, "job_*"))
		for _, job := range jobs {
			t.Errorf("%s is left", job)
			_ = os.WriteFile(filepath.Join(job, "cgroup.kill"), []byte("1"), 0o600)
		}
		for _, cg := range append(jobs, s.scope, filepath.Join(s.cgroup, "slurmd.service"), s.cgroup) {
			removed := func() (bool, error) { err := os.Remove(cg); return err == nil || os.IsNotExist(err), nil }
			if err := harness.Await(context.Background(), 50*time.Millisecond, cg+" is left", removed); err != nil {
				t.Error(err)
			}
		}
	})
	if r := s.node.CLIIn(ctx, spec, "apply", "-f", "-", "--allow-reset"); r.Code != 0 {
		t.Fatalf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	s.configure(ctx)
	s.start(ctx)
	return s
}

func (s *site) write(name, text string) string {
	s.Helper()
	path := filepath.Join(s.dir, name)
	if err := programs.Write(path, text); err != nil {
		s.Fatal(err)
	}
	return path
}

// example is a script as sites get it.
func (s *site) example(name string) string {
	s.Helper()
	b, err := os.ReadFile(filepath.Join("../../examples/slurm", name))
	if err != nil {
		s.Fatal(err)
	}
	return s.write(name, string(b))
}

// batch writes a batch script, which runs in the cgroup of its job.
func (s *site) batch(name, text string) {
	s.Helper()
	job := s.scope + "/job_$SLURM_JOB_ID"
	s.write(name, "#!/bin/sh\nmkdir -p "+job+"\necho $$ >"+job+"/cgroup.procs\n"+text)
}

// configure writes what Slurm reads: the lines for its GPUs are those that 'gpushare slurm gres' prints.
func (s *site) configure(ctx context.Context) {
	s.Helper()
	r := s.node.CLI(ctx, "slurm", "gres", "--node", "node1", "--json")
	var g api.SlurmGres
	if err := json.Unmarshal([]byte(r.Out), &g); err != nil || r.Code != 0 {
		s.Fatalf("gres exits with %d, %v: %s%s", r.Code, err, r.Out, r.Err)
	}
	s.write("gres.conf", strings.Join(g.GresConf, "\n")+"\n")
	plugin := "disabled"
	if out, err := exec.CommandContext(ctx, "chroot", s.root, "slurmd", "-V").CombinedOutput(); err != nil {
		s.Fatalf("slurmd: %v: %s", err, out)
	} else if strings.Contains(string(out), " 22.") {
		plugin = "cgroup/v1" // It has no other name for one that is not used.
	}
	s.write("cgroup.conf", "CgroupPlugin="+plugin+"\n")
	environment := fmt.Sprintf(
		"export PATH=%[1]s:%[2]s:$PATH GPUSHARE_SOCKET=%[3]s GPUSHARE_SLURM_NOTES=%[1]s/notes SLURM_CONF=%[1]s/slurm.conf\n",
		s.dir,
		s.node.Bin,
		s.node.Socket(),
	)
	// The Prolog runs in the job's cgroup, and a process stays there, as with RunInJob.
	prolog, epilog := s.example("prolog.sh"), s.example("epilog.sh")
	s.write("logger", "#!/bin/sh\necho \"$@\" >>"+s.dir+"/prolog.log\n")
	inJob := "job=" + s.scope + `/job_$SLURM_JOB_ID
mkdir -p "$job"
setsid sleep 100000 >/dev/null 2>&1 </dev/null &
echo $! >"$job/cgroup.procs"
echo $$ >"$job/cgroup.procs"
`
	if s.late {
		inJob = ""
	}
	s.write("prolog", "#!/bin/sh\nenv | grep ^SPANK_ >>"+s.dir+"/spank.log\n"+environment+inJob+prolog+"\n")
	s.write("epilog", "#!/bin/sh\n"+environment+epilog+"\njob="+s.scope+`/job_$SLURM_JOB_ID
for i in $(seq 100); do
	rmdir "$job" 2>/dev/null && break
	echo 1 >"$job/cgroup.kill" 2>/dev/null
	sleep 0.1
done
exit 0
`)
	// A step that is late does not bring back the cgroup of a run that has ended: the batch step alone creates it, in batch.
	s.write(
		"taskprolog",
		"#!/bin/sh\n"+environment+"procs="+s.scope+"/job_$SLURM_JOB_ID/cgroup.procs\n[ ! -e $procs ] || echo $PPID >$procs\n"+
			"exec "+s.example("taskprolog.sh")+"\n",
	)
	for _, d := range []string{"ctld", "slurmd"} {
		if err := os.Mkdir(filepath.Join(s.dir, d), 0o755); err != nil {
			s.Fatal(err)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		s.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	port := 20000 + os.Getpid()%10000*2
	plugins := ""
	if s.spank != "" {
		plugins = "PlugStackConfig=" + s.write("plugstack.conf", "required "+s.spank+"\n") + "\n"
	}
	s.write("slurm.conf", fmt.Sprintf(`ClusterName=lab
SlurmctldHost=%[1]s(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=%[2]s/munge.socket
CredType=cred/munge
StateSaveLocation=%[2]s/ctld
SlurmdSpoolDir=%[2]s/slurmd
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd.pid
SlurmctldLogFile=%[2]s/slurmctld.log
SlurmdLogFile=%[2]s/slurmd.log
SlurmctldPort=%[3]d
SlurmdPort=%[4]d
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=%[5]s
SlurmdParameters=config_overrides
ReturnToService=2
PrologFlags=Alloc
Prolog=%[2]s/prolog
Epilog=%[2]s/epilog
TaskProlog=%[2]s/taskprolog
MinJobAge=300
KillWait=2
NodeName=node1 NodeHostname=%[1]s NodeAddr=127.0.0.1 CPUs=16 RealMemory=500 Gres=%[6]s State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=1:00:00 State=UP OverSubscribe=NO
`+plugins, host, s.dir, port, port+1, g.GresTypes, g.Gres))
}

// start starts Slurm in namespaces of its own: all of it ends with their first process.
func (s *site) start(ctx context.Context) {
	s.Helper()
	host := ""
	if s.plain {
		host = fmt.Sprintf(
			"mount --bind \"$2\" \"${1%%/}/usr/local/bin\"\nmount -t tmpfs tmpfs \"${1%%/}/run\"\nmkdir -p \"${1%%/}%s\"\nln -s %s \"${1%%/}%s\"\n",
			filepath.Dir(api.SocketPath),
			s.node.Socket(),
			api.SocketPath,
		)
	}
	begin := s.write("begin", `#!/bin/sh
set -eu
[ "$1" = / ] || {
	for d in /tmp "$2" "$3"; do
		mkdir -p "$1$d"
		mount --rbind "$d" "$1$d"
	done
	mount -t proc proc "$1/proc"
}
`+host+`mkdir "$5"
echo $$ >"$5/cgroup.procs"
exec chroot "$1" "$4/inside"
`)
	s.write("inside", fmt.Sprintf(`#!/bin/sh
cd %[1]s
export SLURM_CONF=%[1]s/slurm.conf PATH=%[2]s:/usr/sbin:/usr/bin:/sbin:/bin
head -c 128 /dev/urandom >munge.key
chmod 400 munge.key
munged --force --key-file=%[1]s/munge.key --socket=%[1]s/munge.socket --pid-file=%[1]s/munge.pid --log-file=%[1]s/munge.log --seed-file=%[1]s/munge.seed
slurmctld
slurmd -N node1
echo $$ >started.new
mv started.new started
exec sleep 100000
`, s.dir, s.node.Bin))
	cmd := exec.CommandContext(
		s.Context(),
		"unshare",
		"--mount",
		"--pid",
		"--fork",
		"--kill-child",
		"--mount-proc",
		begin,
		s.root,
		s.node.Bin,
		filepath.Dir(s.cgroup),
		s.dir,
		filepath.Join(s.cgroup, "slurmd.service"),
	)
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		s.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s.await(ctx, "Slurm has not started", func() bool { _, err := os.Stat(filepath.Join(s.dir, "started")); return err == nil })
	s.await(ctx, "Slurm has no first process", func() bool { return s.find(ctx) != "" })
	s.await(ctx, "the node is not idle", func() bool { return strings.Contains(s.slurm(ctx, "sinfo -h -o %T"), "idle") })
}

// find returns the first process of Slurm's namespace, as this one sees it; empty: it is not there.
func (s *site) find(ctx context.Context) string {
	s.Helper()
	out, err := exec.CommandContext(ctx, "pgrep", "-f", "^sleep 100000$").Output()
	if err != nil {
		return ""
	}
	for _, pid := range strings.Fields(string(out)) {
		if cwd, err := os.Readlink("/proc/" + pid + "/cwd"); err == nil && strings.HasSuffix(cwd, s.dir) {
			return pid
		}
	}
	return ""
}

func (s *site) pid(ctx context.Context) string {
	s.Helper()
	pid := s.find(ctx)
	if pid == "" {
		s.Fatal("there is no process of Slurm")
	}
	return pid
}

// slurm runs a command line in Slurm's namespaces.
func (s *site) slurm(ctx context.Context, line string) string {
	s.Helper()
	pid := s.pid(ctx)
	inside := fmt.Sprintf(
		"cd %[1]s; export SLURM_CONF=%[1]s/slurm.conf GPUSHARE_SOCKET=%[2]s GPUSIM_ROOT=%[3]s PATH=%[4]s:/usr/sbin:/usr/bin:/sbin:/bin; %[5]s",
		s.dir,
		s.node.Socket(),
		s.node.Root(),
		s.node.Bin,
		line,
	)
	out, err := exec.CommandContext(ctx, "nsenter", "-t", pid, "-m", "-p", "chroot", s.root, "sh", "-c", inside).CombinedOutput()
	if err != nil {
		s.Logf("%s: %v: %s", line, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *site) await(ctx context.Context, what string, condition func() bool) {
	s.Helper()
	err := harness.Await(ctx, 50*time.Millisecond, what, func() (bool, error) { return condition(), nil })
	if err != nil {
		logs := ""
		for _, name := range []string{"log", "slurmctld.log", "slurmd.log", "prolog.log"} {
			b, _ := os.ReadFile(filepath.Join(s.dir, name))
			logs += name + ":\n" + string(b)
		}
		s.Fatalf("%v\n%s", err, logs)
	}
}

// leases are those that are there.
func (s *site) leases(ctx context.Context) []api.Lease {
	s.Helper()
	c := s.node.Client()
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		s.Fatal(err)
	}
	return st.Leases
}

// awaitKeys waits until exactly the leases with these keys are there, and each runs.
func (s *site) awaitKeys(ctx context.Context, keys ...string) {
	s.Helper()
	s.await(ctx, fmt.Sprintf("the leases are not those of %v", keys), func() bool {
		have := map[string]bool{}
		for _, l := range s.leases(ctx) {
			if l.Engine == nil || l.State != api.LeaseRunning {
				return false
			}
			have[l.Engine.Key] = true
		}
		for _, k := range keys {
			if !have[k] {
				return false
			}
		}
		return len(have) == len(keys)
	})
}

// A job of a real Slurm has one lease, also with srun in it, which ends with the job: by itself, by scancel, and by a requeue, whose second
// run has another one. Nothing is left.
func TestJobsOfSlurm(t *testing.T) {
	for name, late := range map[string]bool{"the cgroup is there": false, "the cgroup comes after the Prolog": true} {
		t.Run(name, func(t *testing.T) { jobsOfSlurm(t, late) })
	}
}

func jobsOfSlurm(t *testing.T, late bool) {
	s := newSite(t, late)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if out := s.slurm(ctx, "gpushare slurm check --node node1"); !strings.Contains(out, "knows the GPUs of node1 as they are") {
		t.Errorf("check says:\n%s", out)
	}
	s.batch("job", "srun sleep 1\nsrun gpusim-burn --gpu 0 --memory 1GiB --hold\n")
	// What a user writes is no amount.
	submit := "sbatch --parsable -o %j.out --account physics --gres=shard:4 --comment='x JOB_GRES=shard:9 gres/shard:9' -J 'j gres/shard:8' --requeue job"
	id := s.slurm(ctx, submit)
	first := "slurm:lab:" + id + ":0"
	s.awaitKeys(ctx, first)
	l := s.leases(ctx)[0]
	if l.GPUMemory == nil || l.GPUMemory.Limit != 4<<30 || l.User != "root" || l.Engine.Account != "physics" {
		t.Errorf("the lease is %+v, %+v, memory %+v", l, l.Engine, l.GPUMemory)
	}
	s.await(ctx, "the memory of the task is not that of the lease", func() bool {
		all := s.leases(ctx)
		return len(all) == 1 && all[0].GPUMemory != nil && all[0].GPUMemory.Used >= 1<<30
	})
	second := s.slurm(ctx, strings.Replace(submit, "physics", "'a!b'", 1)) // It has a lease, without that account.
	s.awaitKeys(ctx, first, "slurm:lab:"+second+":0")
	s.slurm(ctx, "scancel "+second)
	s.awaitKeys(ctx, first)
	s.slurm(ctx, "scontrol requeue "+id)
	s.awaitKeys(ctx)
	// Slurm gives the Epilog of a requeued job the number of its next run. Without RunInJob the lease may end with its processes.
	if r := s.node.CLI(ctx, "lease", "show", "--key", first); !late && !strings.Contains(r.Out, "released by ") {
		t.Errorf("the Epilog has not released the lease of the first run:\n%s%s", r.Out, r.Err)
	}
	// A requeued job waits for two minutes, from when its first run is over.
	s.await(ctx, "the job is not requeued", func() bool { return s.slurm(ctx, "squeue -h -o %T") == "PENDING" })
	// Its second run has the same cgroup.
	s.await(ctx, "the cgroup of the first run is left", func() bool {
		_, err := os.Stat(filepath.Join(s.scope, "job_"+id))
		return errors.Is(err, fs.ErrNotExist)
	})
	s.slurm(ctx, "scontrol update jobid="+id+" starttime=now")
	s.awaitKeys(ctx, "slurm:lab:"+id+":1")
	s.slurm(ctx, "scancel "+id)
	s.awaitKeys(ctx)
	s.await(ctx, "a job is left", func() bool { return s.slurm(ctx, "squeue -h") == "" })
	s.await(ctx, "the cgroup of a job is left", func() bool {
		entries, err := filepath.Glob(filepath.Join(s.scope, "job_*"))
		return err == nil && len(entries) == 0
	})
	if r := s.node.CLI(
		ctx,
		"usage",
		"--by",
		"account,job",
	); !strings.Contains(r.Out, "slurm:lab:"+id+":1") ||
		!strings.Contains(r.Out, "physics") {
		t.Errorf("usage shows:\n%s%s", r.Out, r.Err)
	}
}

// comments starts what writes the AdminComment of jobs, as the service of a node.
func (s *site) comments(ctx context.Context) {
	s.Helper()
	script := s.example("comments.sh")
	s.slurm(ctx, "setsid "+script+" lab >>"+s.dir+"/comments.log 2>&1 </dev/null &")
}

// A job above its GPU memory is ended, and no other. Its output and its AdminComment say why.
func TestJobAboveItsMemory(t *testing.T) {
	s := newSite(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	s.batch("good", "exec gpusim-burn --gpu 0 --memory 2GiB --hold\n")
	s.batch("bad", "srun gpusim-burn --gpu 0 --memory 4GiB --hold\n")
	good := s.slurm(ctx, "sbatch --parsable -o %j.out --gres=shard:3 good")
	s.awaitKeys(ctx, "slurm:lab:"+good+":0")
	s.comments(ctx)
	bad := s.slurm(ctx, "sbatch --parsable -o %j.out --gres=shard:3 bad")
	s.await(ctx, "the job has not ended", func() bool { return !strings.Contains(s.slurm(ctx, "squeue -h -o %A -j "+bad), bad) })
	const why = "of 3 GiB GPU memory"
	if out, err := os.ReadFile(filepath.Join(s.dir, bad+".out")); err != nil || !strings.Contains(string(out), "gpushare: slurm/jobs") ||
		!strings.Contains(string(out), why) {
		t.Errorf("the output of the job is %q, %v", out, err)
	}
	if job := s.slurm(ctx, "scontrol show job "+bad); !strings.Contains(job, "AdminComment=gpushare: ") || !strings.Contains(job, why) ||
		!strings.Contains(job, "JobState=FAILED") {
		t.Errorf("Slurm knows of the job:\n%s", job)
	}
	s.awaitKeys(ctx, "slurm:lab:"+good+":0")
	s.slurm(ctx, "scancel "+good)
	s.await(ctx, "a job is left", func() bool { return s.slurm(ctx, "squeue -h") == "" })
	s.awaitKeys(ctx)
	if job := s.slurm(ctx, "scontrol show job "+good); strings.Contains(job, "AdminComment") {
		t.Errorf("Slurm knows of a job that used what it had:\n%s", job)
	}
}

// awaitNothing waits until no job, lease or cgroup of a job is left.
func (s *site) awaitNothing(ctx context.Context) {
	s.Helper()
	s.awaitKeys(ctx)
	s.await(ctx, "a job is left", func() bool { return s.slurm(ctx, "squeue -h") == "" })
	s.await(ctx, "the cgroup of a job is left", func() bool {
		entries, err := filepath.Glob(filepath.Join(s.cgroup, "job_*"))
		return err == nil && len(entries) == 0
	})
}

// A change of a GPU that a job has, which does not use it, is refused; with --drain it waits for the job. The node stays drained until
// gres.conf has the new layout, and is resumed where Slurm knows the GPUs as they are.
func TestApplyDrains(t *testing.T) {
	s := newSite(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	node := func() string { return s.slurm(ctx, "scontrol -o show node node1") }
	s.write("job", "#!/bin/sh\nwhile ! [ -e end ]; do sleep 0.1; done\n")
	s.write("whole.yaml", spec)
	s.write("parts.yaml", strings.Replace(spec, "mode: exclusive", "mode: mig, mig: {layout: [3g.20gb, 3g.20gb]}", 1))
	id := s.slurm(ctx, "sbatch --parsable -o %j.out --gres=gpu:1 job")
	s.await(ctx, "the job does not run", func() bool { return s.slurm(ctx, "squeue -h -o %T") == "RUNNING" })
	const apply = "gpushare apply --allow-reset --slurm-node node1 "
	out := s.slurm(ctx, apply+"-f parts.yaml; echo exits with $?")
	if !strings.Contains(out, "the node has jobs: Slurm says ") || !strings.Contains(out, "exits with 5") {
		t.Errorf("next to job %s: %s", id, out)
	}
	if n := node(); strings.Contains(n, "DRAIN") || s.slurm(ctx, "squeue -h -o %T") != "RUNNING" {
		t.Errorf("the node is %s", n)
	}
	drained := make(chan string, 1)
	go func() { drained <- s.slurm(ctx, apply+"--drain -f parts.yaml; echo exits with $?") }()
	s.await(ctx, "the node is not drained", func() bool { return strings.Contains(node(), "+DRAIN") })
	s.write("end", "")
	out = <-drained
	if !strings.Contains(out, "waiting for the jobs of node1") ||
		!strings.Contains(out, "GPU 1 is partitioned, and slurmd gives it whole") ||
		!strings.Contains(out, "exits with 6") ||
		!strings.Contains(node(), "Reason=gpushare-apply-") {
		t.Errorf("with --drain: %s\n%s", out, node())
	}
	s.slurm(ctx, "scontrol update nodename=node1 state=resume")
	out = s.slurm(ctx, apply+"--drain -f whole.yaml; echo exits with $?")
	if !strings.Contains(out, "node1 is resumed in Slurm") || !strings.Contains(out, "exits with 0") || strings.Contains(node(), "DRAIN") {
		t.Errorf("back with --drain: %s\n%s", out, node())
	}
	s.awaitNothing(ctx)
}
