package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// JobLayout is how an engine lays out the cgroup of a job.
type JobLayout int

// The layouts that are known.
const (
	// SlurmLayout is job_N/step_X/{slurm,user/task_Y}. slurmstepd is in step_X/slurm: frozen it would not answer scancel and time limits.
	// Slurm suspends a step in step_X/user, so the files of that one are its own. Read in src/plugins/cgroup/v2 of 22.05 and 24.11.
	SlurmLayout JobLayout = iota + 1
	// PodLayout is the cgroup of a pod, of the drivers systemd and cgroupfs of the kubelet. Runtimes pause a container in the cgroup below,
	// and have their own processes elsewhere.
	PodLayout
)

// mostPoints is how many cgroups of one job are frozen: each has a thaw deadline.
const mostPoints = 1024

// errNoJob says that a cgroup has not the layout that its engine gives to jobs.
var errNoJob = errors.New("it is not laid out as a job of its engine")

// FreezePoints lists the cgroups of a job that may be frozen: all processes that its user starts are in them or below. A cgroup of a
// user, who could thaw it, is none: then there is an error. ErrManyParts if there are more than mostPoints. A job without a step has
// none. ErrNotFound when the job has ended.
func (h Hierarchy) FreezePoints(layout JobLayout, top string) ([]string, error) {
	points, err := h.laidOut(layout, top)
	if err != nil {
		return nil, fmt.Errorf("cannot find what may be frozen of cgroup %s: %w", top, err)
	}
	if len(points) > mostPoints {
		return nil, tooManyPoints(top, len(points))
	}
	kept := points[:0]
	for _, cg := range points {
		var st unix.Stat_t
		err := unix.Stat(h.Dir(path.Join(cg, "cgroup.freeze")), &st)
		switch {
		case isRemoved(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot find what may be frozen of cgroup %s: %w", cg, err)
		case st.Uid != 0 && int(st.Uid) != os.Geteuid():
			return nil, fmt.Errorf("cannot freeze cgroup %s: its file cgroup.freeze belongs to uid %d, who could thaw it", cg, st.Uid)
		}
		kept = append(kept, cg)
	}
	return kept, nil
}

func tooManyPoints(top string, n int) error {
	return fmt.Errorf("cannot freeze cgroup %s: %w: %d, at most %d are frozen", top, ErrManyParts, n, mostPoints)
}

func (h Hierarchy) laidOut(layout JobLayout, top string) ([]string, error) {
	base := path.Base(top)
	switch {
	case layout == SlurmLayout && strings.HasPrefix(base, "job_"):
		return h.tasksOfJob(top)
	case layout == PodLayout && isPod(base):
		if !h.Exists(top) {
			return nil, ErrNotFound
		}
		return []string{top}, nil
	}
	return nil, errNoJob
}

// tasksOfJob lists the cgroups of the tasks of all steps.
func (h Hierarchy) tasksOfJob(job string) ([]string, error) {
	steps, err := h.Children(job)
	if err != nil {
		return nil, err
	}
	var points []string
	for _, step := range steps {
		if !strings.HasPrefix(path.Base(step), "step_") {
			continue
		}
		tasks, err := h.Children(path.Join(step, "user"))
		if err != nil && !errors.Is(err, ErrNotFound) { // The step has ended, or begins.
			return nil, err
		}
		points = append(points, tasks...)
	}
	return points, nil
}

// isPod reports whether a cgroup has the name of a pod's: kubepods-burstable-podUID.slice, or podUID.
func isPod(name string) bool {
	if rest, ok := strings.CutPrefix(name, "kubepods-"); ok && strings.HasSuffix(name, ".slice") {
		return strings.HasPrefix(rest, "pod") || strings.Contains(rest, "-pod")
	}
	return strings.HasPrefix(name, "pod") && len(name) > len("pod") && !strings.Contains(name, ".")
}
