package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slurmJob is a job as slurmd makes it, below a subtree of this test.
type slurmJob struct {
	t   *testing.T
	h   Hierarchy
	top string
}

func newSlurmJob(t *testing.T, tree *Tree) *slurmJob {
	t.Helper()
	j := &slurmJob{t: t, h: tree.h, top: "/" + subtree(t) + "-engine/job_7"}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		top := filepath.Dir(j.top)
		if err := errors.Join(j.h.Kill(ctx, top), j.h.Remove(top)); err != nil {
			t.Error(err)
		}
	})
	return j
}

// spawn starts a process in a cgroup of the job.
func (j *slurmJob) spawn(below string) (p Process, cg string) {
	j.t.Helper()
	cg = j.top + "/" + below
	if err := os.MkdirAll(j.h.Dir(cg), 0o755); err != nil {
		j.t.Fatal(err)
	}
	p = spawn(j.t, "sleep", "60")
	if err := j.h.Place(p, cg); err != nil {
		j.t.Fatal(err)
	}
	return p, cg
}

func (j *slurmJob) set(cg, value string) {
	j.t.Helper()
	if err := writeFile(filepath.Join(j.h.Dir(cg), "cgroup.freeze"), value); err != nil {
		j.t.Fatal(err)
	}
}

// isSet reads whether a cgroup itself is frozen.
func (j *slurmJob) isSet(cg string) bool {
	j.t.Helper()
	set, err := j.h.freezeIsSet(cg)
	if err != nil {
		j.t.Fatal(err)
	}
	return set
}

// frozen reads from the kernel whether the processes of a cgroup are stopped.
func (j *slurmJob) frozen(cg string) bool {
	j.t.Helper()
	v, err := readEvent(j.h.Dir(cg), "frozen")
	if err != nil {
		j.t.Fatal(err)
	}
	return v == "1"
}

func newTestJobFreezer(t *testing.T, tree *Tree, dir, job string) *JobFreezer {
	t.Helper()
	f, err := NewJobFreezer(tree, tree.h, FreezerOptions{RunDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	f.Permit("job", JobCgroup{SlurmLayout, []string{job}})
	return f
}

// jobOfOneTask is a job of Slurm with one task, in a cgroup of its own, next to a gpushare-thaw and a freezer that run. dir has the
// deadlines.
func jobOfOneTask(t *testing.T) (job *slurmJob, f *JobFreezer, task, dir string) {
	t.Helper()
	tree := newTree(t)
	dir = t.TempDir()
	job = newSlurmJob(t, tree)
	_, task = job.spawn("step_0/user/task_0")
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	f = newTestJobFreezer(t, tree, dir, job.top)
	runFreezer(t, f.Freezer)
	return job, f, task, dir
}

// freeze freezes the job for a time slice.
func (j *slurmJob) freeze(f *JobFreezer) {
	j.t.Helper()
	if err := f.Freeze(j.t.Context(), "job", ForTimeSlice, time.Minute); err != nil {
		j.t.Fatal(err)
	}
}

// Of a job of Slurm the tasks are frozen, and slurmstepd goes on. A step that comes meanwhile is found. Scopes are frozen as without jobs.
func TestJobIsFrozen(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	job := newSlurmJob(t, tree)
	_, stepd := job.spawn("step_batch/slurm")
	_, task := job.spawn("step_batch/user/task_0")
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	f := newTestJobFreezer(t, tree, dir, job.top)
	runFreezer(t, f.Freezer)
	job.freeze(f)
	// Where gpushare-thaw or the freezer get no processor for a time it is thawed, and frozen again.
	eventually(t, "it is frozen", func() bool {
		frozen, err := f.Frozen("job")
		if err != nil {
			t.Fatal(err)
		}
		return frozen && job.frozen(task)
	})
	if job.isSet(stepd) || job.frozen(stepd) {
		t.Error("slurmstepd is frozen")
	}
	p, later := job.spawn("step_0/user/task_0")
	eventually(t, "a step that comes is frozen", func() bool { return job.frozen(later) })
	if n := usedDeadlines(t, dir); n != 2 {
		t.Errorf("%d deadlines for two tasks", n)
	}
	if r := f.Reasons("job"); len(r) != 1 || r[0] != ForTimeSlice {
		t.Errorf("it is frozen for %v", r)
	}
	// SIGKILL of the engine reaches what is frozen.
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := job.h.WaitEmpty(within(t, 10*time.Second), later); err != nil {
		t.Fatal(err)
	}
	if err := job.h.Remove(job.top + "/step_0"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Thaw(t.Context(), "job", ForTimeSlice); err != nil {
			t.Fatal(err)
		}
		if job.isSet(task) || job.frozen(task) || len(f.Reasons("job")) != 0 {
			t.Error("it is not thawed")
		}
	}
	if err := f.Freeze(t.Context(), "job", ForAdministrator, time.Minute); !errors.Is(err, ErrNotSupported) || job.isSet(task) {
		t.Errorf("a freeze for an administrator: %v", err)
	}
	job.freeze(f)
	f.Forbid("job") // The spec permits it no longer.
	if err := f.Thaw(t.Context(), "job", ForTimeSlice); err != nil || job.isSet(task) {
		t.Errorf("what may not be frozen any more is not thawed: %v", err)
	}
	f.Permit("job", JobCgroup{SlurmLayout, []string{job.top}})
	job.freeze(f)
	if err := f.Retain(t.Context(), nil); err != nil || job.isSet(task) || usedDeadlines(t, dir) != 0 || len(f.jobs) != 0 {
		t.Errorf("it is not forgotten: %v", err)
	}
	if _, err := tree.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
		t.Fatal(err)
	}
	freezeFor(t, f.Freezer, "l-1", ForAdministrator, time.Minute)
	if frozen, err := f.Frozen("l-1"); !frozen || err != nil {
		t.Errorf("a scope is frozen: %v, %v", frozen, err)
	}
	if err := f.Thaw(t.Context(), "l-1", ForAdministrator); err != nil || isFrozen(t, tree, "l-1") {
		t.Errorf("a scope is not thawed: %v", err)
	}
}

// A job that is forbidden while it is frozen is thawed by the next freeze, which fails: who freezes it takes it for thawed then.
func TestAForbiddenJobIsThawed(t *testing.T) {
	job, f, task, dir := jobOfOneTask(t)
	job.freeze(f)
	f.Forbid("job")
	if err := f.Freeze(t.Context(), "job", ForTimeSlice, time.Minute); !errors.Is(err, errForbidden) {
		t.Errorf("a freeze of what is forbidden: %v", err)
	}
	if job.isSet(task) || len(f.Reasons("job")) != 0 || usedDeadlines(t, dir) != 0 {
		t.Error("it is frozen and nothing thaws it")
	}
}

// Freezes and thaws that meet Retain leave nothing frozen that is not in the list of jobs.
func TestJobIsFrozenWhileItIsForgotten(t *testing.T) {
	job, f, task, _ := jobOfOneTask(t)
	for range 100 {
		f.Permit("job", JobCgroup{SlurmLayout, []string{job.top}})
		var calls sync.WaitGroup
		for range 2 {
			calls.Go(func() {
				// One that comes after Retain finds neither a job nor a scope.
				_ = f.Freeze(t.Context(), "job", ForTimeSlice, time.Minute)
			})
		}
		calls.Go(func() {
			if err := f.Retain(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
		calls.Wait()
		if n := len(f.all()); n != 0 || job.isSet(task) {
			t.Fatalf("%d jobs are left, a task is frozen: %v", n, job.isSet(task))
		}
	}
}

// A freeze that waits while its job is forgotten, and comes back before, freezes what a thaw finds.
func TestJobComesBackWhileItIsForgotten(t *testing.T) {
	job, f, task, _ := jobOfOneTask(t)
	for range 20 {
		job.freeze(f)
		var calls sync.WaitGroup
		x := f.locked("job", false)
		calls.Go(func() {
			if err := f.Retain(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "it is forbidden", func() bool { _, ok := f.job("job"); return !ok })
		pause(time.Millisecond) // Mostly Retain waits for the job then, and the freeze comes after it; in any other order the same holds.
		f.Permit("job", JobCgroup{SlurmLayout, []string{job.top}})
		calls.Go(func() {
			if err := f.Freeze(t.Context(), "job", ForTimeSlice, time.Minute); err != nil {
				t.Error(err)
			}
		})
		pause(time.Millisecond)
		x.mu.Unlock()
		calls.Wait()
		if err := f.Thaw(t.Context(), "job", ForTimeSlice); err != nil || job.isSet(task) {
			t.Fatalf("it is frozen and a thaw does not find it: %v", err)
		}
	}
}

// What another program has frozen is left to it, and what Slurm suspends above is neither thawed nor waited for.
func TestFrozenByAnother(t *testing.T) {
	job, f, task, _ := jobOfOneTask(t)
	_, other := job.spawn("step_0/user/task_1")
	job.set(other, "1")
	slice := func(do func()) {
		t.Helper()
		job.freeze(f)
		do()
		if err := f.Thaw(within(t, 5*time.Second), "job", ForTimeSlice); err != nil {
			t.Fatal(err)
		}
	}
	slice(func() {})
	if job.isSet(task) || !job.isSet(other) {
		t.Errorf("after a slice the tasks are frozen: %v, and by another program %v", job.isSet(task), job.isSet(other))
	}
	job.set(other, "0")
	slice(func() {
		eventually(t, "it is frozen when the other program has thawed it", func() bool { return job.frozen(other) })
	})
	job.set(other, "1") // It was frozen by this process before.
	if err := f.Retain(t.Context(), nil); err != nil || !job.isSet(other) {
		t.Errorf("what another program has frozen is thawed when the job is forgotten: %v", err)
	}
	f.Permit("job", JobCgroup{SlurmLayout, []string{job.top}})
	job.set(other, "0")
	step := job.top + "/step_0/user"
	for name, suspend := range map[string]func(){
		"before the slice": nil, "in the slice": func() { job.set(step, "1") },
	} {
		if suspend == nil {
			job.set(step, "1")
			suspend = func() {}
		}
		slice(suspend)
		if job.isSet(task) || !job.frozen(task) {
			t.Errorf("suspended %s: frozen here %v, stopped %v", name, job.isSet(task), job.frozen(task))
		}
		job.set(step, "0")
		eventually(t, "it runs when Slurm resumes it", func() bool { return !job.frozen(task) })
	}
}

// A process that the layout does not have keeps a job from being frozen whole.
func TestOutsideOfTheTasks(t *testing.T) {
	tree := newTree(t)
	job := newSlurmJob(t, tree)
	stepd, _ := job.spawn("step_0/slurm")
	task, _ := job.spawn("step_0/user/task_0")
	f := newTestJobFreezer(t, tree, t.TempDir(), job.top)
	at, _ := f.job("job")
	if err := f.Outside(at, []int{task.PID, os.Getpid(), 1 << 30}); err != nil {
		t.Error(err)
	}
	if err := f.Outside(at, []int{task.PID, stepd.PID}); err == nil {
		t.Error("a process of the job is not frozen, and that is not said")
	}
}

// A job that has more tasks than are frozen may be frozen, and each freeze of it fails: its user does not get it out of the time slices.
func TestTooManyTasks(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	job := newSlurmJob(t, tree)
	task, cg := job.spawn("step_0/user/task_0")
	for i := range mostPoints {
		if err := os.Mkdir(job.h.Dir(fmt.Sprintf("%s/step_0/user/task_%d", job.top, i+1)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	f := newTestJobFreezer(t, tree, dir, job.top)
	runFreezer(t, f.Freezer)
	at, _ := f.job("job")
	if err := f.Outside(at, []int{task.PID}); err != nil {
		t.Errorf("it may never be frozen: %v", err)
	}
	if err := f.Freeze(t.Context(), "job", ForTimeSlice, time.Minute); !errors.Is(err, ErrManyParts) || job.isSet(cg) {
		t.Errorf("it is frozen: %v", err)
	}
	if err := job.h.Remove(job.top + "/step_0/user/task_1"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // The second freeze has the files open.
		began := time.Now()
		if err := f.Freeze(t.Context(), "job", ForTimeSlice, time.Minute); err != nil {
			t.Fatalf("with one less it is not frozen: %v", err)
		}
		frozen := time.Now()
		eventually(t, "with one less it is frozen", func() bool { return job.frozen(cg) })
		thaw := time.Now()
		if err := f.Thaw(t.Context(), "job", ForTimeSlice); err != nil || job.isSet(cg) {
			t.Errorf("it is not thawed: %v", err)
		}
		t.Logf("%d cgroups were frozen in %s and thawed in %s", mostPoints, frozen.Sub(began), time.Since(thaw))
	}
}

// What a killed process has frozen of a job is thawed, and the next one freezes it again.
func TestJobOfAKilledFreezer(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	job := newSlurmJob(t, tree)
	_, task := job.spawn("step_0/user/task_0")
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	f := newTestJobFreezer(t, tree, dir, job.top)
	for range 2 { // Nothing runs it: it shows no sign of life.
		eventually(t, "it is frozen", func() bool {
			job.freeze(f)
			return job.frozen(task) // On a busy host gpushare-thaw may have been faster.
		})
		eventually(t, "gpushare-thaw thaws it", func() bool { return !job.isSet(task) && !job.frozen(task) })
	}
}

// A job that a killed process has left frozen, and of which the next one freezes nothing therefore, is frozen again in the same slice
// when gpushare-thaw has thawed it.
func TestJobIsFrozenAgainInTheSlice(t *testing.T) {
	job, f, task, dir := jobOfOneTask(t)
	job.set(task, "1")
	job.freeze(f)
	for end := time.Now().Add(2 * keepInterval); time.Now().Before(end); pause(5 * time.Millisecond) {
		if !job.isSet(task) || usedDeadlines(t, dir) != 0 {
			t.Fatal("what another program has frozen is not left to it")
		}
	}
	job.set(task, "0")
	eventually(t, "it is frozen again", func() bool { return job.frozen(task) })
	if err := f.Thaw(t.Context(), "job", ForTimeSlice); err != nil || job.isSet(task) {
		t.Errorf("it is not thawed: %v", err)
	}
}

// The pods of one lease are frozen together, also while one of them is not there.
func TestPodsOfALeaseAreFrozen(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	job := newSlurmJob(t, tree)
	_, one := job.spawn("pod1")
	_, container := job.spawn("pod2/cri-containerd-1.scope")
	two := filepath.Dir(container)
	runThawWatchdog(t, dir, tree.freezer, io.Discard)
	f := newTestJobFreezer(t, tree, dir, job.top)
	at := JobCgroup{PodLayout, []string{one, two, job.top + "/pod3"}}
	f.Permit("job", at)
	job.freeze(f)
	if !job.isSet(one) || !job.isSet(two) || job.isSet(container) || usedDeadlines(t, dir) != 2 {
		t.Errorf(
			"set: %v, %v, the container's %v; %d deadlines",
			job.isSet(one),
			job.isSet(two),
			job.isSet(container),
			usedDeadlines(t, dir),
		)
	}
	if err := f.Thaw(t.Context(), "job", ForTimeSlice); err != nil || job.isSet(one) || job.isSet(two) {
		t.Errorf("they are not thawed: %v", err)
	}
}
