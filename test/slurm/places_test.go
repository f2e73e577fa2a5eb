//go:build slurm

package slurm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// fourGPUs are two that are shared, with a whole one between them: slurmd counts them in another order than gpushare and the driver.
const fourGPUs = "driver: \"580\"\ngpus:\n  - {model: A100-40, count: 4}\n"

// placesSpec has grants of each kind. %s is the mode of GPU 1.
const placesSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: timeslice, owner: slurm}
  - {select: {index: 1}, %s, owner: slurm}
  - {select: {index: 2}, mode: exclusive, owner: slurm}
  - {select: {index: 3}, mode: timeslice, owner: slurm}
tenants:
  - name: slurm
    grants:
      - {name: first, timeslice: {share: 80%%, gpu_memory: 30GiB}, gpus: {index: 0}}
      - {name: last, timeslice: {share: 80%%, gpu_memory: 20GiB}, gpus: {index: 3}}
      - {name: whole, exclusive: 1, gpus: {index: 2}}
`

// leaseOf is the lease of a job; nil: it has none.
func (s *site) leaseOf(ctx context.Context, job string) *api.Lease {
	s.Helper()
	for _, l := range s.leases(ctx) {
		if l.Engine != nil && l.Engine.Key == "slurm:lab:"+job+":0" {
			return &l
		}
	}
	return nil
}

// A job has its lease on the GPU, or of the instance, that Slurm gave it, however slurmd counts them, and its tasks have the UUID of that.
// A text of the user that looks like what Slurm says changes nothing.
func TestPlacesOfJobs(t *testing.T) {
	old := strings.Contains(os.Getenv("SLURM_ROOT"), "12") // 22.05 has instances or shards.
	mode, mig := "mode: mig, mig: {layout: [3g.20gb, 3g.20gb]}", "\n      - {name: cut, mig: 3g.20gb, max_leases: 2}"
	if old {
		mode, mig = "mode: exclusive", "\n      - {name: another, exclusive: 1, gpus: {index: 1}}"
	}
	s := siteOf(t, false, fourGPUs, strings.TrimRight(fmt.Sprintf(placesSpec, mode), "\n")+mig+"\n")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	s.batch("job", "echo has $CUDA_VISIBLE_DEVICES\nwhile ! [ -e end ]; do sleep 0.1; done\n")
	submit := func(args string) string { return s.slurm(ctx, "sbatch --parsable -o %j.out "+args+" job") }
	st, err := s.node.Client().Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	whole := st.GPUs[2].UUID
	if old {
		whole = st.GPUs[1].UUID // It is the first that is whole.
	}
	type want struct {
		job, gpu string
		memory   uint64
	}
	jobs := []want{
		{submit("--gres=shard:30"), st.GPUs[0].UUID, 30 << 30},
		{
			submit(
				"-J 'x\n   Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:a100-shared:3(3/38,0/38)\n1|gres/shard:1|N/A|N/A|N/A|' --gres=shard:19",
			),
			st.GPUs[3].UUID,
			19 << 30,
		},
		{submit("--gres=gpu:a100:1"), whole, 0},
	}
	if !old {
		jobs = append(jobs, want{submit("--gres=gpu:3g.20gb:1"), "", 0})
	}
	for _, w := range jobs {
		s.await(
			ctx,
			"job "+w.job+" has no lease",
			func() bool { l := s.leaseOf(ctx, w.job); return l != nil && l.State == api.LeaseRunning },
		)
		l := s.leaseOf(ctx, w.job)
		device := w.gpu
		if device == "" {
			device = st.GPUs[1].MIG.Instances[0].UUIDs[0]
		}
		if (w.gpu != "" && strings.Join(l.GPUs, ",") != w.gpu) || (w.memory > 0 && l.GPUMemory.Limit != w.memory) {
			t.Errorf("job %s has the lease %+v, memory %+v; want %+v", w.job, l, l.GPUMemory, w)
		}
		s.await(ctx, "the task of job "+w.job+" has not "+device, func() bool {
			b, err := os.ReadFile(filepath.Join(s.dir, w.job+".out"))
			return err == nil && strings.Contains(string(b), "has "+device)
		})
	}
	s.write("end", "")
	s.awaitNothing(ctx)
	if left, err := os.ReadDir(filepath.Join(s.dir, "notes")); err != nil || len(left) > 0 {
		t.Errorf("notes are left: %v, %v", left, err)
	}
}

// A job that is refused its lease runs, and its output says why.
func TestRefusedJobSaysWhy(t *testing.T) {
	s := newSite(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	s.batch("job", "echo ran\n")
	id := s.slurm(ctx, "sbatch --parsable -o %j.out --gres=shard:38 job")
	s.await(ctx, "the job says nothing", func() bool {
		b, err := os.ReadFile(filepath.Join(s.dir, id+".out"))
		return err == nil && strings.Contains(string(b), "ran\n") && strings.Contains(string(b), "gpushare: this job has no lease: ")
	})
	b, err := os.ReadFile(filepath.Join(s.dir, "prolog.log"))
	if err != nil || !strings.Contains(string(b), "job "+id+" has no lease: ") {
		t.Errorf("the journal has %q, %v", b, err)
	}
	t.Logf("%s", b)
	s.awaitNothing(ctx)
}
