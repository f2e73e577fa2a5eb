package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layOut creates directories with a file cgroup.freeze each, as cgroups have.
func layOut(t *testing.T, dirs ...string) Hierarchy {
	t.Helper()
	h := Hierarchy{Mount: t.TempDir()}
	for _, dir := range dirs {
		if err := os.MkdirAll(h.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.Dir(dir), "cgroup.freeze"), []byte("0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// What is frozen of a job is where its user's processes are, and nothing of the engine.
func TestFreezePoints(t *testing.T) {
	t.Parallel()
	const job = "/system.slice/n1_slurmstepd.scope/job_7"
	h := layOut(t,
		job+"/step_batch/slurm", job+"/step_batch/user/task_0", job+"/step_0/slurm", job+"/step_0/user/task_0",
		job+"/step_0/user/task_special/deeper", job+"/step_0/user/task_special", job+"/step_extern/slurm", job+"/other/user/task_0",
		"/system.slice/n1_slurmstepd.scope/job_8", "/system.slice/n1_slurmstepd.scope/system",
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-a.scope",
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice", "/kubepods/burstable/pod1-2",
	)
	for name, c := range map[string]struct {
		layout JobLayout
		top    string
		want   []string
		err    error
	}{
		"a job of Slurm": {SlurmLayout, job, []string{
			job + "/step_0/user/task_0", job + "/step_0/user/task_special", job + "/step_batch/user/task_0",
		}, nil},
		"a job without a step": {SlurmLayout, "/system.slice/n1_slurmstepd.scope/job_8", nil, nil},
		"a job that has ended": {SlurmLayout, "/system.slice/n1_slurmstepd.scope/job_9", nil, ErrNotFound},
		"a step":               {SlurmLayout, job + "/step_0", nil, errNoJob},
		"all jobs":             {SlurmLayout, "/system.slice/n1_slurmstepd.scope", nil, errNoJob},
		"a pod": {
			PodLayout, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
			[]string{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"},
			nil,
		},
		"a pod of the driver cgroupfs": {PodLayout, "/kubepods/burstable/pod1-2", []string{"/kubepods/burstable/pod1-2"}, nil},
		"a pod that has ended":         {PodLayout, "/kubepods/burstable/pod3", nil, ErrNotFound},
		"all pods of a class":          {PodLayout, "/kubepods.slice/kubepods-burstable.slice", nil, errNoJob},
		"the kubelet's own":            {PodLayout, "/kubepods.slice", nil, errNoJob},
		"a pod under Slurm's key":      {SlurmLayout, "/kubepods/burstable/pod1-2", nil, errNoJob},
		"a job under Kubernetes' key":  {PodLayout, job, nil, errNoJob},
		"no layout":                    {0, job, nil, errNoJob},
	} {
		got, err := h.FreezePoints(c.layout, c.top)
		if !slices.Equal(got, c.want) || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, err, c.want, c.err)
		}
	}
}

// A cgroup that its user could thaw is no point, and neither are more than a job has.
func TestWhatIsNoFreezePoint(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		h := layOut(t, "/job_1/step_0/user/task_0")
		if err := os.Chown(h.Dir("/job_1/step_0/user/task_0/cgroup.freeze"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if got, err := h.FreezePoints(SlurmLayout, "/job_1"); err == nil || !strings.Contains(err.Error(), "belongs to uid 65534") {
			t.Errorf("a cgroup of a user: %v, %v", got, err)
		}
	}
	h := layOut(t, "/job_1/step_0/user")
	for i := range mostPoints + 1 {
		if err := os.Mkdir(h.Dir(fmt.Sprintf("/job_1/step_0/user/task_%d", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := h.FreezePoints(SlurmLayout, "/job_1"); !errors.Is(err, ErrManyParts) || !strings.Contains(err.Error(), "at most 1024") {
		t.Errorf("%d cgroups: %v", len(got), err)
	}
}
