//go:build engines

package engines

import (
	"strings"
	"testing"
	"time"
)

// A pod, a job of Slurm and a command of gpushare run have a part of one GPU each: in one status and one account, each opens that GPU alone.
// The job that uses more memory than it has is ended, the others go on.
func (l *lab) threeWaysToOneGPU(t *testing.T) {
	t.Log(l.node.do(t, 5*time.Minute, "gpushare apply -f /opt/lab/guest/three.yaml --force 2>&1"))
	l.node.do(t, 5*time.Minute, "start_jobs")
	uid := l.working(t, "three-pod", "part-30g", "20GiB")
	pod := l.node.do(t, time.Minute, "processes_of "+uid)
	job := l.node.do(t, 2*time.Minute, "submit work 8 4GiB")
	l.node.do(t, 4*time.Minute, "until_true 200 uses \"$(key_of "+job+")\" $((4 << 30))")
	local := l.node.do(t, 2*time.Minute, "start_job alice local dev --memory 10GiB --kernel 50ms --queue 2 --seconds 3000; echo $pid")
	t.Log(
		l.node.do(
			t,
			2*time.Minute,
			"gpushare status; gpushare lease list; gpushare usage --by account,job; gpushare slurm check --node lab1 || true",
		),
	)
	const want = "kubernetes root 30\nlocal alice 20\nslurm bob 8"
	if got := l.node.do(t, time.Minute, "on_gpu 1"); got != want {
		t.Errorf("on the GPU are\n%s\nwant\n%s", got, want)
	}
	usage := l.node.do(t, time.Minute, "gpushare usage --by account,job --csv")
	for _, has := range []string{"default,kubernetes:", "slurm:lab:" + job + ":0"} {
		if !strings.Contains(usage, has) {
			t.Errorf("the account has no %s:\n%s", has, usage)
		}
	}
	l.opensOnly(t, "three-pod", gpus[1])
	for who, script := range map[string]string{
		"the job":            "sed -n 's/^nodes: //p' $jobs/work.out",
		"a command on it":    "opens_of_user local dev",
		"a job of no GPU":    "setpriv --reuid bob --regid bob --init-groups srun -t 1 bash -c \"$opens\" opens $root/dev/nvidia{0,1,2} | xargs echo",
		"a command on GPU 2": "opens_of_user local whole",
	} {
		want := map[string]string{"a job of no GPU": "denied denied denied", "a command on GPU 2": "denied denied through"}[who]
		if want == "" {
			want = "denied through denied"
		}
		if got := l.node.do(t, 4*time.Minute, script); got != want {
			t.Errorf("%s opens the GPUs with %q, want %q", who, got, want)
		}
	}
	over := l.node.do(t, 2*time.Minute, "submit over 3 5GiB")
	l.node.do(t, 5*time.Minute, "until_true 240 job_is "+over+" FAILED")
	t.Log(l.node.do(t, time.Minute, "cat $jobs/over.out"))
	l.goesOn(t, uid, pod, "the end of a job")
	l.node.do(t, time.Minute, "[ -d /proc/"+local+" ]; uses \"$(key_of "+job+")\" $((4 << 30))")
	l.node.do(t, 5*time.Minute, "scancel "+job+"; until_true 200 no_jobs; end_job_of_user local dev")
	l.remove(t, "three-pod")
	if rest := l.node.do(t, time.Minute, "until_true 30 no_leases; field '.leases[].id'"); rest != "" {
		t.Errorf("leases are left: %s", rest)
	}
	l.nothingLeft(t)
	l.node.do(t, 5*time.Minute, "stop_slurm; gpushare apply -f /opt/lab/guest/kubernetes.yaml --force 2>&1")
	if said := l.node.do(t, time.Minute, "conditions"); said != "" {
		t.Errorf("gpushared reports after that: %s", said)
	}
}
