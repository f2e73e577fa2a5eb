package cgroup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// JobCgroup is where the processes of a job of an engine are: in one cgroup, or in those of the pods that share a lease.
type JobCgroup struct {
	Layout JobLayout
	Paths  []string
}

// contains reports whether a cgroup is one of the job, or below one.
func (at *JobCgroup) contains(cg string) bool {
	return slices.ContainsFunc(at.Paths, func(top string) bool { return Below(cg, top) })
}

// points lists what may be frozen of all cgroups of a job. ErrNotFound if none of them is there.
func (j *JobFreezer) points(at *JobCgroup) ([]string, error) {
	var points []string
	var missing error
	found := false
	for _, top := range at.Paths {
		list, err := j.h.FreezePoints(at.Layout, top)
		switch {
		case errors.Is(err, ErrNotFound):
			missing = err
			continue
		case err != nil:
			return nil, err
		}
		found, points = true, append(points, list...)
	}
	if !found {
		return nil, missing
	}
	if len(points) > mostPoints {
		return nil, tooManyPoints(at.Paths[0], len(points))
	}
	return points, nil
}

// JobFreezer freezes scopes as its Freezer does, and jobs of engines: their processes are in cgroups that the engine made, of which it
// freezes only the FreezePoints, and only for time slices. Each of them is a scope of the Freezer, with a thaw deadline of its own. One
// that another program has frozen already is left to that program. New ones are found at each freeze, and every keepInterval while
// something is frozen.
type JobFreezer struct {
	*Freezer
	h Hierarchy

	mu        sync.Mutex            // guards the fields below; not held while a job's is taken
	permitted map[string]JobCgroup  // those that may be frozen
	jobs      map[string]*frozenJob // those that were frozen since they exist
}

// frozenJob is a job that was frozen.
type frozenJob struct {
	mu       sync.Mutex      // guards the fields below; held during a freeze and a thaw
	until    time.Duration   // of CLOCK_BOOTTIME; 0: it is not frozen
	parts    map[string]bool // cgroups that were frozen by this process; false: they were thawed since, and may be frozen by another one
	stopping bool
	removed  bool // it is no longer in JobFreezer.jobs
}

// NewJobFreezer returns a JobFreezer of the scopes of port and of jobs in the hierarchy.
func NewJobFreezer(port LeafFreezer, h Hierarchy, opt FreezerOptions) (*JobFreezer, error) {
	f, err := NewFreezer(partFreezer{port, NewKernelFreezer(h.Mount)}, opt)
	if err != nil {
		return nil, err
	}
	j := &JobFreezer{Freezer: f, h: h, permitted: map[string]JobCgroup{}, jobs: map[string]*frozenJob{}}
	f.passed = j.renew
	return j, nil
}

// Permit permits to freeze a job, until Forbid or until Retain does not list it. Freeze takes what is not permitted for a scope.
func (j *JobFreezer) Permit(id string, at JobCgroup) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.permitted[id] = at
}

// Forbid undoes Permit. It thaws nothing: Thaw does.
func (j *JobFreezer) Forbid(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.permitted, id)
}

// partSign is between the id of a job and the path of a part of it, in the id of the part. No id of a scope has it.
const partSign = "@"

func partID(job, cg string) string { return job + partSign + cg }

// partFreezer freezes the parts of jobs by their paths, and all else as the port.
type partFreezer struct {
	LeafFreezer
	kernel KernelFreezer
}

// Leaf is the cgroup that is frozen.
func (p partFreezer) Leaf(id string) (string, error) {
	if _, cg, ok := strings.Cut(id, partSign); ok {
		return cg, nil
	}
	return p.LeafFreezer.Leaf(id)
}

// begun is the key of a context with which the freeze of a part is begun and not waited for.
type begun struct{}

// Freeze stops the processes.
func (p partFreezer) Freeze(ctx context.Context, id string) error {
	_, cg, ok := strings.Cut(id, partSign)
	switch {
	case !ok:
		return p.LeafFreezer.Freeze(ctx, id)
	case ctx.Value(begun{}) != nil:
		return p.kernel.begin(cg)
	}
	return p.kernel.Freeze(ctx, cg)
}

// Thaw undoes Freeze.
func (p partFreezer) Thaw(ctx context.Context, id string) error {
	if _, cg, ok := strings.Cut(id, partSign); ok {
		return p.kernel.Thaw(ctx, cg)
	}
	return p.LeafFreezer.Thaw(ctx, id)
}

// Frozen reads the state back.
func (p partFreezer) Frozen(id string) (bool, error) {
	if _, cg, ok := strings.Cut(id, partSign); ok {
		return p.kernel.Frozen(cg)
	}
	return p.LeafFreezer.Frozen(id)
}

// job returns the cgroup of a job that may be frozen.
func (j *JobFreezer) job(id string) (JobCgroup, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.permitted[id]
	return at, ok
}

// locked returns a job that was frozen with its lock held; nil if none was. With create it also returns one that may be frozen.
func (j *JobFreezer) locked(id string, create bool) *frozenJob {
	for {
		j.mu.Lock()
		x := j.jobs[id]
		if _, ok := j.permitted[id]; x == nil && create && ok {
			x = &frozenJob{parts: map[string]bool{}}
			j.jobs[id] = x
		}
		j.mu.Unlock()
		if x == nil {
			return nil
		}
		x.mu.Lock()
		if !x.removed {
			return x
		}
		x.mu.Unlock()
	}
}

// errForbidden says that a job was forbidden after it was frozen.
var errForbidden = errors.New("it may not be frozen any more")

// Freeze is that of Freezer. A job is frozen for ForTimeSlice only: ErrNotSupported otherwise. ErrManyParts if it has too many. After an
// error no part of it is frozen, also of one that is forbidden since it was frozen.
func (j *JobFreezer) Freeze(ctx context.Context, id string, reason FreezeReason, d time.Duration) error {
	x := j.locked(id, true)
	if x == nil {
		return j.Freezer.Freeze(ctx, id, reason, d)
	}
	defer x.mu.Unlock()
	if reason != ForTimeSlice {
		return fmt.Errorf("cannot freeze %s: a job of an engine is frozen for time slices only: %w", id, ErrNotSupported)
	}
	at, ok := j.job(id) // Under the job's lock: Retain forbids first, and then waits for it.
	if !ok {
		return errors.Join(fmt.Errorf("cannot freeze %s: %w", id, errForbidden), j.undo(ctx, id, x))
	}
	if x.stopping {
		return fmt.Errorf("cannot freeze %s: %w", id, ErrStopping)
	}
	// A kernel that stops a hundred tasks one after the other takes longer than a slice: it begins with all, and then they are waited for.
	err := j.begin(ctx, id, at, x, d)
	if err == nil {
		err = j.await(ctx, id, x)
	}
	if err != nil {
		return errors.Join(err, j.undo(ctx, id, x))
	}
	x.until = procfs.BootTime() + d
	j.wakeUp() // Also if all is frozen by another program: when that one thaws it, renew freezes it.
	return nil
}

// undo thaws a job after an error. Its lock is held.
func (j *JobFreezer) undo(ctx context.Context, id string, x *frozenJob) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawTimeout)
	defer cancel()
	return j.thaw(ctx, id, x)
}

// begin begins to freeze the parts that there are now. The job's lock is held.
func (j *JobFreezer) begin(ctx context.Context, id string, at JobCgroup, x *frozenJob, d time.Duration) error {
	points, err := j.points(&at)
	if errors.Is(err, ErrNotFound) {
		points, err = nil, nil // It has ended.
	}
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(points))
	for _, cg := range points {
		there[cg] = true
	}
	for cg := range x.parts {
		if !there[cg] {
			if err := j.forgetPart(ctx, id, x, cg); err != nil {
				return err
			}
		}
	}
	for _, cg := range points {
		if !x.parts[cg] {
			if set, err := j.h.freezeIsSet(cg); errors.Is(err, ErrNotFound) || set {
				continue // Another program has frozen it, and thaws it.
			}
		}
		x.parts[cg] = true // From here on it has to be thawed.
		err := j.Freezer.Freeze(context.WithValue(ctx, begun{}, true), partID(id, cg), ForTimeSlice, d)
		if err := j.unlessEnded(ctx, id, x, cg, err); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the parts are frozen that are being frozen. The job's lock is held.
func (j *JobFreezer) await(ctx context.Context, id string, x *frozenJob) error {
	for cg, frozen := range x.parts {
		if !frozen {
			continue
		}
		if err := j.unlessEnded(ctx, id, x, cg, j.freezer.Freeze(ctx, partID(id, cg))); err != nil {
			return err
		}
	}
	return nil
}

// unlessEnded returns an error of a freeze, and forgets the part if it was removed meanwhile: its task has ended.
func (j *JobFreezer) unlessEnded(ctx context.Context, id string, x *frozenJob, cg string, err error) error {
	if errors.Is(err, ErrNotFound) || isRemoved(err) {
		return j.forgetPart(ctx, id, x, cg)
	}
	return err
}

// forgetPart thaws a part of a job and forgets it.
func (j *JobFreezer) forgetPart(ctx context.Context, id string, x *frozenJob, cg string) error {
	if err := j.forget(ctx, partID(id, cg)); err != nil {
		return err
	}
	delete(x.parts, cg)
	if p, ok := j.freezer.(partFreezer); ok {
		p.kernel.Forget(cg)
	}
	return nil
}

// thaw thaws all parts of a job. Its lock is held.
func (j *JobFreezer) thaw(ctx context.Context, id string, x *frozenJob) error {
	x.until = 0
	var errs []error
	for cg, frozen := range x.parts {
		if !frozen {
			continue
		}
		if err := j.Freezer.Thaw(ctx, partID(id, cg), ForTimeSlice); err != nil {
			errs = append(errs, err)
			continue
		}
		x.parts[cg] = false
	}
	return errors.Join(errs...)
}

// Thaw is that of Freezer.
func (j *JobFreezer) Thaw(ctx context.Context, id string, reason FreezeReason) error {
	x := j.locked(id, false)
	if x == nil {
		return j.Freezer.Thaw(ctx, id, reason)
	}
	defer x.mu.Unlock()
	if reason != ForTimeSlice {
		return nil
	}
	return j.thaw(ctx, id, x)
}

// Stopping is that of Freezer.
func (j *JobFreezer) Stopping(ctx context.Context, id string) error {
	x := j.locked(id, false)
	if x == nil {
		return j.Freezer.Stopping(ctx, id)
	}
	defer x.mu.Unlock()
	x.stopping = true
	return j.thaw(ctx, id, x)
}

// Retain is that of Freezer.
func (j *JobFreezer) Retain(ctx context.Context, ids map[string]bool) error {
	j.mu.Lock()
	maps.DeleteFunc(j.permitted, func(id string, _ JobCgroup) bool { return !ids[id] })
	j.mu.Unlock()
	var errs []error
	for id, x := range j.all() {
		if !ids[id] {
			errs = append(errs, j.end(ctx, id, x))
		}
	}
	// Parts come and go with their job.
	keep := func(id string) bool { return ids[id] || strings.Contains(id, partSign) }
	return errors.Join(append(errs, j.retain(ctx, keep))...)
}

// end thaws and forgets a job.
func (j *JobFreezer) end(ctx context.Context, id string, x *frozenJob) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.removed {
		return nil
	}
	var errs []error
	for _, cg := range slices.Collect(maps.Keys(x.parts)) {
		errs = append(errs, j.forgetPart(ctx, id, x, cg))
	}
	if len(x.parts) > 0 {
		return errors.Join(errs...)
	}
	x.removed = true
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.jobs, id)
	return nil
}

// Reasons is that of Freezer.
func (j *JobFreezer) Reasons(id string) []FreezeReason {
	x := j.locked(id, false)
	if x == nil {
		return j.Freezer.Reasons(id)
	}
	defer x.mu.Unlock()
	if x.until > procfs.BootTime() {
		return []FreezeReason{ForTimeSlice}
	}
	return nil
}

// Frozen reads back whether all parts of a job are stopped, or the scope. A job without parts is not.
func (j *JobFreezer) Frozen(id string) (bool, error) {
	at, ok := j.job(id)
	if !ok {
		return j.Freezer.Frozen(id)
	}
	points, err := j.points(&at)
	if err != nil {
		return false, err
	}
	for _, cg := range points {
		frozen, err := j.Freezer.Frozen(partID(id, cg))
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if !frozen || err != nil {
			return false, err
		}
	}
	return len(points) > 0, nil
}

// Outside returns why a job cannot be frozen whole: the first of these processes that is in none of its FreezePoints. nil if all are,
// or have ended. That it has too many of them is no such reason: its user makes them, and would never be frozen. Freeze fails then.
func (j *JobFreezer) Outside(at JobCgroup, pids []int) error {
	points, err := j.points(&at)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrManyParts) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, pid := range pids {
		cg, err := procfs.Cgroup(pid)
		if err != nil || !at.contains(cg) || slices.ContainsFunc(points, func(p string) bool { return Below(cg, p) }) {
			continue
		}
		return fmt.Errorf("pid %d (%s) is in %s, which gpushare does not freeze", pid, procfs.Name(pid), cg)
	}
	return nil
}

// renew freezes the parts that came since the last freeze of a job, and those that another program has thawed since, as gpushare-thaw
// what a process has left frozen that was killed. It waits for none: the next sign of life is due soon after. The next Freeze, which
// moves the deadline, waits for them. It reports whether a job is to be frozen.
func (j *JobFreezer) renew(ctx context.Context) (active bool, err error) {
	var errs []error
	for id, x := range j.all() {
		at, ok := j.job(id)
		if !ok {
			continue
		}
		if !x.mu.TryLock() { // It is being frozen or thawed.
			active = true
			continue
		}
		if left := x.until - procfs.BootTime(); left > 0 && !x.stopping {
			active = true
			if err := j.begin(ctx, id, at, x, left); err != nil {
				errs = append(errs, fmt.Errorf("cannot freeze what came to %s: %w", id, errors.Join(err, j.undo(ctx, id, x))))
			}
		}
		x.mu.Unlock()
	}
	return active, errors.Join(errs...)
}

func (j *JobFreezer) all() map[string]*frozenJob {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.jobs)
}
