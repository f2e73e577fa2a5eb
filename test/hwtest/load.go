package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/test/harness"
)

const (
	allocMiB = 1024 // allocated by the attribution job
	loadMiB  = 1024 // set repeatedly by a loaded job
	quotaMiB = 2048 // limit of the tenant that exceeds it
)

// loadSpec time-slices one GPU. It does not change the GPU itself.
const loadSpec = `version: v1
node: {enforce: on}
gpus:
  - select: {uuid: %s}
    mode: timeslice
    timeslice: {round: 1s}
tenants:
  - name: hwtest-a
    grants: [{name: part, timeslice: {share: 30%%, gpu_memory: 4GiB}}]
  - name: hwtest-b
    grants: [{name: part, timeslice: {share: 70%%, gpu_memory: 4GiB}}]
  - name: hwtest-greedy
    overuse: {gpu_memory: kill, grace: 2s}
    grants: [{name: part, timeslice: {share: 10%%, gpu_memory: %dMiB}}]
`

// load runs leases on one GPU, if that changes nothing and disturbs no other process.
func (t *test) load(ctx context.Context) error {
	t.title("Leases")
	uuid, err := t.choose(ctx)
	if err != nil {
		return err
	}
	t.gpu = uuid
	spec := fmt.Appendf(nil, loadSpec, uuid, quotaMiB)
	res, err := t.node.Client().Apply(ctx, spec, client.ApplyOptions{Check: true})
	if err != nil {
		return err
	}
	for _, s := range res.Plan.Steps {
		if s.GPU != "" {
			return skipped(fmt.Sprintf("the plan has the step %q on the GPU, and this test changes no GPU", s.Text))
		}
	}
	if r := t.node.CLIIn(ctx, string(spec), "apply", "-f", "-"); r.Code != 0 {
		return fmt.Errorf("cannot apply the spec: %s", r.Err)
	}
	for _, p := range parts {
		if !t.chosen(p.name) {
			continue
		}
		// A part that cannot be measured does not end the report.
		if err := p.run(t, ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			t.say("\nNot measured (%s): %v", p.name, err)
			var skip skipped
			if !errors.As(err, &skip) {
				t.failures++
			}
		}
	}
	return nil
}

// parts are what is measured on the GPU, in the order of the report.
var parts = []struct {
	name string
	run  func(t *test, ctx context.Context) error
}{
	{"attribution", (*test).attribution},
	{"calls", (*test).answers},
	{"overuse", (*test).overuse},
	{"work", (*test).shares},
	{"samples", (*test).samples},
	{"drain", (*test).drain},
	{"overshoot", (*test).overshoot},
	{"kill", (*test).kill},
	{"shares", (*test).table},
}

func partNames() (out []string) {
	for _, p := range parts {
		out = append(out, p.name)
	}
	return out
}

func (t *test) chosen(name string) bool { return len(t.only) == 0 || slices.Contains(t.only, name) }

// choose selects a GPU that is free and needs no change for time slices.
func (t *test) choose(ctx context.Context) (string, error) {
	if t.host.program(1, 0, 0, 0) == nil {
		return "", skipped("gcc is missing: cannot build the CUDA program")
	}
	others, err := t.host.observe(ctx)
	if err != nil {
		return "", err
	}
	st, err := t.node.Client().Status(ctx)
	if err != nil {
		return "", err
	}
	if others == nil { // A virtual node: any GPU without MIG.
		for i := range st.GPUs {
			if st.GPUs[i].MIG == nil {
				t.capacity = int(st.GPUs[i].Memory.Total>>20) / 2
				return st.GPUs[i].UUID, nil
			}
		}
	}
	why := "there is no GPU"
	for _, o := range others {
		switch {
		case o.mig:
			why = "MIG is on, and this test does not turn it off"
		case o.computeMode != "Default":
			why = "the compute mode is " + o.computeMode + ", and this test does not change it"
		case o.computeProcesses > 0:
			why = "other processes compute on it"
		case o.totalMiB-o.usedMiB < 4*allocMiB+quotaMiB:
			why = "it has too little free memory"
		default:
			t.capacity = min(int(o.totalMiB-o.usedMiB)/2, 64<<10)
			return o.uuid, nil
		}
	}
	return "", skipped("no GPU is usable: " + why)
}

// job starts a program in a lease of a tenant and waits until its memory is allocated.
func (t *test) job(ctx context.Context, tenant string, argv []string) (*harness.Job, error) {
	j, err := t.node.Run(append([]string{"-q", "-t", tenant, "--grant", "part", "--"}, argv...)...)
	if err != nil {
		return nil, err
	}
	t.jobs = append(t.jobs, j)
	wait, cancel := context.WithTimeout(ctx, 60*time.Second) // The first context on a cold GPU takes seconds.
	defer cancel()
	if err := j.AwaitLine(wait, "ready"); err != nil {
		return nil, fmt.Errorf("the job of %s: %w", tenant, err)
	}
	return j, nil
}

// attribution checks that the memory of a process is attributed to its lease.
func (t *test) attribution(ctx context.Context) error {
	began := time.Now()
	j, err := t.job(ctx, "hwtest-a", t.host.program(allocMiB, 0, 0, 0))
	if err != nil {
		return err
	}
	defer j.Stop()
	t.say("`gpushare run` to memory in use: %d ms", time.Since(began).Milliseconds())
	var used uint64
	wait, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err = harness.Await(wait, 200*time.Millisecond, "no memory was attributed to the lease", func() (bool, error) {
		st, err := t.node.Client().Status(wait)
		if err != nil {
			return false, err
		}
		if l := harness.Lease(st, "hwtest-a", "part"); l != nil && l.GPUMemory != nil {
			used = l.GPUMemory.Used
		}
		return used >= allocMiB<<20, nil
	})
	t.check(
		err == nil, "a lease that allocated %d MiB is shown with %.0f MiB: %.0f MiB for the context", allocMiB, mib(used),
		mib(used)-allocMiB,
	)
	if err != nil {
		st, err := t.node.Client().Status(ctx)
		if err != nil {
			return err
		}
		if g := byUUID(st, t.gpu); g != nil {
			t.say("  the driver lists %d processes on this GPU, and the lease is pid %d", len(g.Processes), j.PID())
		}
	}
	return nil
}

// answers measures driver calls while the GPU is busy.
func (t *test) answers(ctx context.Context) error {
	j, err := t.job(ctx, "hwtest-b", t.host.program(loadMiB, 0, 0, loadMiB))
	if err != nil {
		return err
	}
	defer j.Stop()
	t.title("Driver calls, one busy process on the GPU")
	out, err := t.host.latency(ctx, t.gpu)
	if err != nil {
		t.say("Not measured: %v", err)
		return nil
	}
	t.say("%s", strings.TrimSpace(out))
	return nil
}

// overuse lets a job allocate more than granted and expects that it is stopped.
func (t *test) overuse(ctx context.Context) error {
	t.title("A lease that uses too much memory")
	j, err := t.job(ctx, "hwtest-greedy", t.host.program(512, 512, 2*quotaMiB, 0))
	if err != nil {
		return err
	}
	defer j.Stop()
	began := time.Now()
	wait, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	var most uint64
	_ = harness.Await(wait, 100*time.Millisecond, "it was not stopped", func() (bool, error) { // The check below reports it.
		select {
		case <-j.Done():
			return true, nil
		default:
		}
		st, err := t.node.Client().Status(wait)
		if err != nil {
			return false, err
		}
		if l := harness.Lease(st, "hwtest-greedy", "part"); l != nil && l.GPUMemory != nil {
			most = max(most, l.GPUMemory.Used)
		}
		return false, nil
	})
	select {
	case <-j.Done():
		t.check(
			most > quotaMiB<<20 && j.Code() != 0,
			"it was observed with %.0f MiB of %d MiB and stopped %.1f s after its start; its exit code is %d", mib(most), quotaMiB,
			time.Since(began).Seconds(), j.Code(),
		)
	default:
		t.check(
			false, "it was observed with %.0f MiB of %d MiB and was not stopped in %.0f s", mib(most), quotaMiB,
			time.Since(began).Seconds(),
		)
	}
	return nil
}

// shares measures shares of 30 % and 70 % of one GPU by the work of two jobs.
func (t *test) shares(ctx context.Context) error {
	t.title("30 % and 70 % of one GPU")
	a, err := t.job(ctx, "hwtest-a", t.host.program(loadMiB, 0, 0, loadMiB))
	if err != nil {
		return err
	}
	defer a.Stop()
	alone, err := t.rate(ctx, 3*time.Second, a)
	if err != nil {
		return err
	}
	b, err := t.job(ctx, "hwtest-b", t.host.program(loadMiB, 0, 0, loadMiB))
	if err != nil {
		return err
	}
	defer b.Stop()
	st, err := t.node.Client().Status(ctx)
	if err != nil {
		return err
	}
	if l := harness.Lease(st, "hwtest-a", "part"); l == nil || l.Share == nil || !l.Share.Enforced {
		t.say("Not measured: time shares are not enforced, because the processes cannot be frozen (see doctor above).")
		return nil
	}
	if _, err := t.rate(ctx, 4*time.Second, a, b); err != nil { // until the scheduler is stable
		return err
	}
	got, err := t.rate(ctx, t.window, a, b)
	if err != nil {
		return err
	}
	part := 100 * got[0] / (got[0] + got[1])
	t.say(
		"Work per second (on a real GPU: how often %d MiB were set): alone %.0f; shared %.0f and %.0f.\n", loadMiB, alone[0], got[0],
		got[1],
	)
	t.check(math.Abs(part-30) <= 5, "%.1f %% and %.1f %% over %s", part, 100-part, t.window)
	t.say("- both together did %.0f %% of the work of one alone", 100*(got[0]+got[1])/alone[0])
	st, err = t.node.Client().Status(ctx)
	if err != nil {
		return err
	}
	for _, tenant := range []string{"hwtest-a", "hwtest-b"} {
		t.say("- gpushare reports for %s: %s", tenant, shareText(harness.Lease(st, tenant, "part")))
	}
	return nil
}

// rate returns the work per second of jobs over a duration.
func (t *test) rate(ctx context.Context, duration time.Duration, jobs ...*harness.Job) ([]float64, error) {
	before := make([]float64, len(jobs))
	for i, j := range jobs {
		// Right after its start a job has no work yet.
		before[i], _ = t.host.amount(ctx, j)
	}
	began := time.Now()
	select {
	case <-time.After(duration): // the time of the measurement
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	out := make([]float64, len(jobs))
	for i, j := range jobs {
		now, err := t.host.amount(ctx, j)
		if err != nil {
			return nil, err
		}
		out[i] = (now - before[i]) / time.Since(began).Seconds()
	}
	return out, nil
}

func shareText(l *api.Lease) string {
	if l == nil || l.Share == nil {
		return "nothing"
	}
	s := fmt.Sprintf("%.0f %% granted", l.Share.Entitled)
	if l.Share.Occupancy != nil {
		s += fmt.Sprintf(", used the GPU %.1f %%", *l.Share.Occupancy)
	}
	if l.Share.Busy != nil && l.Share.StdErr != nil {
		s += fmt.Sprintf(", by the driver's samples %.0f ± %.0f %%", *l.Share.Busy, *l.Share.StdErr)
	}
	return s
}

func mib(b uint64) float64 { return float64(b) / (1 << 20) }
