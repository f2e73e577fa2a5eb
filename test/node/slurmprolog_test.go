package node

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

// slurmJobs are stand-ins of Slurm on a node, and the scripts that run next to them.
type slurmJobs struct {
	*testing.T
	node  *harness.Node
	bin   string
	count []string // the devices of the node in the order in which slurmd counts them
}

// newSlurmJobs has a slurmd that counts the GPUs in another order than gpushare, and a squeue that says 3 shards of every job.
func newSlurmJobs(t *testing.T, n *harness.Node) *slurmJobs {
	t.Helper()
	s := &slurmJobs{T: t, node: n, bin: t.TempDir()}
	r := n.CLI(soon(t), "slurm", "gres", "--node", "node1", "--json")
	var g api.SlurmGres
	if err := json.Unmarshal([]byte(r.Out), &g); err != nil || r.Code != 0 {
		t.Fatalf("gres exits with %d, %v: %s%s", r.Code, err, r.Out, r.Err)
	}
	text := "#!/bin/sh\n"
	for _, line := range slices.Backward(g.GresConf) {
		_, files, ok := strings.Cut(line, "iles=")
		if !ok {
			_, files, ok = strings.Cut(line, "File=")
		}
		if ok && strings.Contains(line, "Name=gpu") {
			s.count = append(s.count, files)
			text += fmt.Sprintf("echo 'slurmd: Gres Name=gpu Type=x Count=1 Index=0 ID=1 File=%s Links=(null)'\n", files)
		}
	}
	for name, body := range map[string]string{
		"slurmd": text,
		"squeue": "#!/bin/sh\necho \"$SLURM_JOB_ID|gres/shard:3|N/A|N/A|N/A|\"\n",
		"logger": "#!/bin/sh\necho \"$*\" >>" + s.bin + "/journal\n",
	} {
		if err := programs.Write(filepath.Join(s.bin, name), body); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// at is how slurmd counts the GPU or the instance with these files.
func (s *slurmJobs) at(files ...string) string {
	s.Helper()
	i := slices.Index(s.count, strings.Join(files, ","))
	if i < 0 {
		s.Fatalf("slurmd does not know %v: %v", files, s.count)
	}
	return fmt.Sprint(i)
}

// run runs a script as Slurm does, for a job with this GPU: the Prolog in the cgroup of the job.
func (s *slurmJobs) run(script, cgroup, id, gpus string) (code int, out, errs string) {
	s.Helper()
	path, err := filepath.Abs(filepath.Join(root, "examples/slurm", script))
	if err != nil {
		s.Fatal(err)
	}
	line := `exec "$2"`
	if cgroup != "" {
		line = `echo $$ >"$1/cgroup.procs" && ` + line
	}
	return runIn(
		s.T,
		s.node,
		exec.CommandContext(soon(s.T), "sh", "-c", line, "sh", cgroup, path),
		"PATH="+s.bin+":"+s.node.Bin+":/usr/bin:/bin",
		"GPUSHARE_TENANT=red",
		"GPUSHARE_SLURM_NOTES="+s.bin+"/notes",
		"GPUSHARE_PROLOG_SECONDS=20",
		"SLURM_CLUSTER_NAME=lab",
		"SLURMD_NODENAME=node1",
		"SLURM_JOB_UID=65534",
		"SLURM_JOB_GID=65534",
		"SLURM_JOB_ID="+id,
		"SLURM_JOB_GPUS="+gpus,
	)
}

// A job of Slurm has its lease on the GPU or of the instance that Slurm gave it, however slurmd counts them. Its tasks have the UUID, and
// the Epilog leaves nothing.
func TestSlurmPrologOfTheNode(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	s := newSlurmJobs(t, n)
	st := status(t, n)
	in := &st.GPUs[0].MIG.Instances[1]
	for i, c := range []struct {
		name   string
		files  []string
		device string
		memory uint64
	}{
		{"shards", []string{st.GPUs[2].DeviceNode}, st.GPUs[2].UUID, 3 << 30},
		{"an instance", in.DeviceNodes, in.UUIDs[0], 0},
		{"a whole GPU", []string{st.GPUs[3].DeviceNode}, st.GPUs[3].UUID, 0},
	} {
		id := fmt.Sprint(40 + i)
		at := belowCgroup(t, dir, "job_"+id)
		job := startOutside(t, n, 0, "sleep", "60")
		enter(t, at, job.pid())
		gpus := s.at(c.files...)
		if code, out, errs := s.run("prolog.sh", at, id, gpus); code != 0 {
			t.Fatalf("%s: the Prolog exits with %d: %s%s", c.name, code, out, errs)
		}
		l := byKey(t, n, "slurm:lab:"+id+":0")
		if l.State != api.LeaseRunning || l.UID != 65534 || l.Isolation.Cgroup != path+"/job_"+id ||
			c.memory > 0 && l.GPUMemory.Limit != c.memory {
			said, _ := os.ReadFile(filepath.Join(s.bin, "journal"))
			t.Errorf("%s: the lease is %+v, memory %+v: %s", c.name, l, l.GPUMemory, said)
		}
		code, out, errs := s.run("taskprolog.sh", "", id, gpus)
		if want := "export CUDA_VISIBLE_DEVICES=" + c.device + "\n"; code != 0 || !strings.Contains(out, want) ||
			!strings.Contains(out, "export GPUSHARE_LEASE="+l.ID+"\n") {
			t.Errorf("%s: the TaskProlog exits with %d: %s%s; want %s", c.name, code, out, errs, want)
		}
		if code, out, errs := s.run("epilog.sh", "", id, gpus); code != 0 {
			t.Errorf("%s: the Epilog exits with %d: %s%s", c.name, code, out, errs)
		}
		if l := byKey(t, n, l.Engine.Key); l.Ended == nil {
			t.Errorf("%s: the lease is %+v", c.name, l)
		}
	}
	if left, err := filepath.Glob(s.bin + "/notes/*"); err != nil || len(left) > 0 {
		t.Errorf("notes are left: %v, %v", left, err)
	}
	if said, err := os.ReadFile(filepath.Join(s.bin, "journal")); err == nil {
		t.Errorf("the journal has %s", said)
	}
}
