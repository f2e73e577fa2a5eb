//go:build slurm

package slurm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// What 'gpushare slurm install' writes runs as it is, with the lines that it prints, next to an Epilog of the site. A job has its lease and
// its UUID; a GPU that is lost drains the node with the reason; uninstall leaves what the site had.
func TestInstalledScripts(t *testing.T) {
	s := begun(t, &site{T: t, late: true, plain: true}, nodeFile, spec)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	dir := s.dir
	lines := s.slurm(ctx, "gpushare slurm install --dir "+dir+" --node node1 --json")
	if !strings.Contains(lines, `"Prolog=`+dir+`/prolog.d/*"`) {
		t.Fatalf("install says %s", lines)
	}
	// The site's own: it removes the cgroup of the job, which no plug-in does here.
	own := "#!/bin/sh\njob=" + s.scope + "/job_$SLURM_JOB_ID\nfor i in $(seq 100); do\n\trmdir \"$job\" 2>/dev/null && break\n\techo 1 >\"$job/cgroup.kill\"\n\tsleep 0.1\ndone 2>/dev/null\nexit 0\n"
	if err := programs.Write(filepath.Join(dir, "epilog.d/a-site"), own); err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile(filepath.Join(s.dir, "slurm.conf"))
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(conf)) {
		if !strings.HasPrefix(line, "Prolog") && !strings.HasPrefix(line, "Epilog") && !strings.HasPrefix(line, "TaskProlog") {
			kept = append(kept, line)
		}
	}
	s.write(
		"slurm.conf",
		strings.Join(kept, "")+"PrologFlags=Alloc,Contain\nProlog="+dir+"/prolog.d/*\nEpilog="+dir+"/epilog.d/*\nTaskProlog="+dir+
			"/gpushare-taskprolog\nHealthCheckProgram="+dir+"/gpushare-health\nHealthCheckInterval=2\n",
	)
	s.slurm(ctx, "scontrol reconfigure")
	check := "gpushare slurm check --node node1 --dir " + dir
	s.await(ctx, "Slurm does not run the scripts", func() bool {
		// The cgroups of jobs are of these tests, and not of Slurm.
		out := s.slurm(ctx, check+"; echo exits with $?")
		return strings.Contains(out, "ProctrackType is proctrack/linuxproc") && strings.Contains(out, "1 difference on node1\nexits with 6")
	})
	s.batch("job", "echo has $CUDA_VISIBLE_DEVICES $GPUSHARE_LEASE\nwhile ! [ -e end ]; do sleep 0.1; done\n")
	id := s.slurm(ctx, "sbatch --parsable -o %j.out --gres=shard:4 job")
	s.awaitKeys(ctx, "slurm:lab:"+id+":0")
	l := s.leases(ctx)[0]
	s.await(ctx, "the task has not what its lease says", func() bool {
		b, err := os.ReadFile(filepath.Join(s.dir, id+".out"))
		return err == nil && strings.Contains(string(b), "has "+l.GPUs[0]) && strings.Contains(string(b), l.ID)
	})
	if n := s.slurm(ctx, "scontrol -o show node node1"); strings.Contains(n, "DRAIN") {
		t.Errorf("the node is drained: %s", n)
	}
	s.write("end", "")
	s.awaitNothing(ctx)
	if err := s.node.Ctl(ctx, nil, "fault", "add", "DeviceGetMemoryInfo*", "lose", "--gpu", "0"); err != nil {
		t.Fatal(err)
	}
	if err := s.node.Client().Reload(ctx); err != nil {
		t.Fatal(err)
	}
	s.await(ctx, "the node is not drained", func() bool {
		n := s.slurm(ctx, "scontrol -o show node node1")
		return strings.Contains(n, "DRAIN") && strings.Contains(n, "Reason=gpushare: GPU 0 is lost")
	})
	if out := s.slurm(ctx, "gpushare slurm uninstall --dir "+dir+" 2>&1; echo exits with $?"); !strings.Contains(out, "Slurm runs it") {
		t.Errorf("uninstall of what Slurm runs says %s", out)
	}
	out := s.slurm(ctx, "gpushare slurm uninstall --force --dir "+dir)
	left, err := filepath.Glob(dir + "/*.d/*")
	scripts, _ := filepath.Glob(dir + "/gpushare-*")
	if err != nil || strings.Join(left, " ") != dir+"/epilog.d/a-site" || len(scripts) > 0 {
		t.Errorf("uninstall says %s, and leaves %v, %v, %v", out, left, scripts, err)
	}
}
