//go:build slurm

package slurm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What sbatch and srun are given reaches the Prolog of the job, and an invalid value no job.
func TestSpankReachesTheProlog(t *testing.T) {
	plugin, _ := buildSpank(t)
	s := begun(t, &site{T: t, spank: plugin}, nodeFile, spec)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	s.batch("job", "exec sleep 1\n")
	s.batch("long", "exec sleep 100\n")
	id := s.slurm(ctx, "sbatch --parsable -o %j.out --gres=shard:4 --gpu-memory=3G --gpu-share=30 long")
	s.awaitKeys(ctx, "slurm:lab:"+id+":0")
	// The 4 shards are 10.66% of the 80% and 30 GiB that the grant has: the 30% are not given.
	if l := s.leases(ctx)[0]; l.GPUMemory == nil || l.GPUMemory.Limit != 3<<30 || l.Share == nil || l.Share.Entitled != 10.66 {
		t.Errorf("the lease has memory %+v and share %+v", l.GPUMemory, l.Share)
	}
	s.slurm(ctx, "scancel "+id)
	s.awaitKeys(ctx)
	for _, line := range []string{
		"sbatch -o %j.out --gres=shard:4 --gpu-memory=3G --gpu-share=30 job",
		"srun --gres=shard:4 --gpu-memory=512MiB true",
	} {
		s.slurm(ctx, line)
	}
	for _, want := range []string{"SPANK_GPUSHARE_MEMORY=3GiB", "SPANK_GPUSHARE_SHARE=30%", "SPANK_GPUSHARE_MEMORY=512MiB"} {
		s.await(ctx, want+" does not reach a Prolog", func() bool {
			b, _ := os.ReadFile(filepath.Join(s.dir, "spank.log")) // It is written by the first Prolog.
			return strings.Contains(string(b), want+"\n")
		})
	}
	s.await(ctx, "a job is left", func() bool { return s.slurm(ctx, "squeue -h") == "" })
	s.slurm(ctx, "sbatch --parsable -o %j.out --gres=shard:4 --gpu-memory=3GB job >refused 2>&1")
	b, err := os.ReadFile(filepath.Join(s.dir, "refused"))
	if err != nil || !strings.Contains(string(b), "--gpu-memory=3GB is an invalid amount of GPU memory") {
		t.Errorf("sbatch prints %q, %v", b, err)
	}
	if out := s.slurm(ctx, "squeue -h"); out != "" {
		t.Errorf("a job with an invalid amount is there: %s", out)
	}
}
