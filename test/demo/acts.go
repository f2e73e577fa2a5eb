package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

func (s *show) start(ctx context.Context) error {
	s.title("A virtual DGX A100 and the shipped daemon on it")
	if err := s.node.Start(ctx); err != nil {
		return err
	}
	if _, err := s.must(ctx, "gpu", "list"); err != nil {
		return err
	}
	info, err := s.node.Client().Info(ctx)
	if err != nil {
		return err
	}
	switch info.Adapter {
	case "processes":
		s.say("Without root: leases are process trees, without isolation and freezing.")
	default:
		s.say("Processes are held by: %s", info.Adapter)
	}
	return nil
}

func (s *show) apply(ctx context.Context) error {
	s.title("What would change, and then the change")
	if _, err := s.must(ctx, "apply", "-f", s.spec, "--check", "--diff", "--allow-reset"); err != nil {
		return err
	}
	before, err := s.node.Client().Status(ctx)
	if err != nil {
		return err
	}
	if before.Node.Generation != 0 {
		return fmt.Errorf("--check changed something: generation %d", before.Node.Generation)
	}
	s.say("The GPUs are as delivered: MIG mode is off, and the driver resets a GPU to turn it on. That needs a permission.")
	if _, err := s.must(ctx, "apply", "-f", s.spec, "--allow-reset"); err != nil {
		return err
	}
	return s.layout(ctx)
}

// layout checks that the node is as the spec says.
func (s *show) layout(ctx context.Context) error {
	st, err := s.node.Client().Status(ctx)
	if err != nil {
		return err
	}
	modes := map[string]int{}
	for i := range st.GPUs {
		g := &st.GPUs[i]
		modes[g.Mode]++
		if g.State != "ok" {
			return fmt.Errorf("GPU %d is %s: %s", g.Index, g.State, g.Reason)
		}
		if g.Mode == api.ModeMPS && (g.MPS == nil || g.MPS.State != "running") {
			return fmt.Errorf("MPS does not run on GPU %d", g.Index)
		}
		if g.Mode != api.ModeMIG {
			continue
		}
		var have []string
		for _, in := range g.MIG.Instances {
			have = append(have, in.Profile)
		}
		want := slices.Clone(g.MIG.Layout)
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			return fmt.Errorf("GPU %d has %v, the spec says %v", g.Index, have, want)
		}
	}
	want := map[string]int{api.ModeMIG: 2, api.ModeMPS: 1, api.ModeTimeslice: 2, api.ModeExclusive: 2, api.ModeUnmanaged: 1}
	for mode, n := range want {
		if modes[mode] != n {
			return fmt.Errorf("%d GPUs are in mode %s, want %d", modes[mode], mode, n)
		}
	}
	return nil
}

func (s *show) runJobs(ctx context.Context) error {
	s.title("Tenants run real processes")
	for _, j := range []struct {
		tenant, grant string
		burn          []string
	}{
		{"vision", "train", []string{"--memory", "8GiB", "--kernel", "5ms", "--queue", "20"}},
		{"speech", "serve", []string{"--memory", "2GiB", "--kernel", "2ms", "--queue", "8"}},
		{"vision", "dev", []string{"--memory", "4GiB", "--kernel", "5ms", "--queue", "10"}},
		{"speech", "dev", []string{"--memory", "4GiB", "--kernel", "5ms", "--queue", "10"}},
		{"vision", "notebook", []string{"--memory", "4GiB", "--kernel", "5ms", "--queue", "20"}},
	} {
		if _, err := s.job(ctx, j.tenant, j.grant, j.burn...); err != nil {
			return err
		}
	}
	fmt.Fprintln(s.out)
	counters, err := s.node.Client().Counters(ctx)
	if err != nil {
		return err
	}
	s.shared = counters["freezes"]
	if err := harness.Await(ctx, 100*time.Millisecond, "the memory of the leases is not seen", func() (bool, error) {
		return s.allMeasured(ctx, 5)
	}); err != nil {
		return err
	}
	_, err = s.must(ctx, "status")
	return err
}

// allMeasured reports whether there is this number of leases, each with its memory.
func (s *show) allMeasured(ctx context.Context, leases int) (bool, error) {
	st, err := s.node.Client().Status(ctx)
	if err != nil {
		return false, err
	}
	for i := range st.Leases {
		if m := st.Leases[i].GPUMemory; m == nil || m.Used == 0 {
			return false, nil
		}
	}
	return len(st.Leases) == leases, nil
}

// find returns the job and the lease of a grant.
func (s *show) lease(ctx context.Context, tenant, grant string) (*api.Lease, error) {
	st, err := s.node.Client().Status(ctx)
	if err != nil {
		return nil, err
	}
	l := harness.Lease(st, tenant, grant)
	if l == nil {
		return nil, fmt.Errorf("%s/%s has no lease", tenant, grant)
	}
	return l, nil
}

// isolation runs a job that tries to use a GPU of another tenant by naming it.
func (s *show) isolation(ctx context.Context) error {
	s.title("A tenant tries to use another tenant's GPU")
	other, err := s.lease(ctx, "speech", "dev")
	if err != nil {
		return err
	}
	args := append(
		[]string{"-t", "students", "--grant", "lab", "--"},
		s.node.Burn("--gpu", other.GPUs[0], "--memory", "1GiB", "--seconds", "0.2")...)
	fmt.Fprintf(s.out, "$ gpushare run -t students --grant lab -- gpusim-burn --gpu %s …\n", other.GPUs[0])
	j, err := s.node.Run(args...)
	if err != nil {
		return err
	}
	s.jobs = append(s.jobs, j)
	select {
	case <-j.Done():
	case <-ctx.Done():
		return fmt.Errorf("the job that tries to use another GPU does not end: %w", ctx.Err())
	}
	if !s.node.RealNodes || !other.Isolation.Devices {
		s.say("It was not denied (exit code %d): device rules are not enforced here, as 'gpushare doctor' reports.", j.Code())
		return nil
	}
	if j.Code() != deniedDevice {
		return fmt.Errorf("the job that tries to use another GPU ended with %d, want %d: %s", j.Code(), deniedDevice, j.Output())
	}
	for line := range strings.Lines(j.Output()) {
		if strings.Contains(line, "denied") {
			fmt.Fprint(s.out, "  "+line)
		}
	}
	s.say("The kernel denied the device; %s, which uses that GPU, was not affected.", other.ID)
	return nil
}

// deniedDevice is the exit code of a virtual CUDA program that may not open its device.
const deniedDevice = 77

func (s *show) overuse(ctx context.Context) error {
	s.title("A tenant takes more GPU memory than its quota")
	events := make(chan api.Event, 1024)
	follow, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	go func() {
		_ = s.node.Client().Events(follow, func(e api.Event) { // The loop below ends at the same deadline.
			select {
			case events <- e:
			default:
			}
		})
	}()
	// It grows fast: with its low priority it has a twentieth of the time next to the notebook, and is frozen in between.
	greedy, err := s.job(ctx, "students", "lab", "--memory", "6GiB", "--grow", "8GiB/s", "--kernel", "2ms", "--queue", "4")
	if err != nil {
		return err
	}
	// The events arrive on another connection, so the notice may be read after the end of the job.
	notified, done := false, greedy.Done()
	for done != nil || !notified {
		select {
		case e := <-events:
			if e.Tenant == "students" && strings.HasPrefix(e.Kind, "memory.") {
				s.say("%s  %s", e.Kind, e.Message)
				notified = true
			}
		case <-done:
			done = nil
		case <-follow.Done():
			return fmt.Errorf("the greedy job was not reported and stopped: %w: %s", follow.Err(), greedy.Output())
		}
	}
	s.say("The greedy job ended with code %d.", greedy.Code())
	neighbour, err := s.lease(ctx, "vision", "notebook")
	if err != nil {
		return fmt.Errorf("the neighbour was disturbed: %w", err)
	}
	s.say("Its neighbour %s keeps running.", neighbour.ID)
	return nil
}

// truth is the state of the virtual GPUs.
type truth struct {
	GPUs     []gpuTruth `json:"gpus"`
	Counters struct {
		Writes uint64 `json:"writes"` // calls that changed a GPU
	} `json:"counters"`
}

type gpuTruth struct {
	Identity struct {
		UUID string `json:"uuid"`
	} `json:"identity"`
	Busy map[string]float64 `json:"busy"` // seconds since the start, by pid
}

// learnedFreezes is the number of freezes after which the scheduler knows how long the queued work of both jobs runs: it learns
// that from the first slices of each.
const learnedFreezes = 2 * 12

func (s *show) shares(ctx context.Context) error {
	s.title("30%% and 70%% of one GPU")
	a, err := s.lease(ctx, "vision", "dev")
	if err != nil {
		return err
	}
	if !a.Share.Enforced {
		s.say("Freezing is not permitted here, so time shares are not enforced (run as root with a cgroup v2 hierarchy).")
		return nil
	}
	b, err := s.lease(ctx, "speech", "dev")
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := harness.Await(wait, 100*time.Millisecond, "the two jobs are not frozen in turn", func() (bool, error) {
		n, err := s.node.Client().Counters(wait)
		return err == nil && n["freezes"] >= s.shared+learnedFreezes, err
	}); err != nil {
		return err
	}
	s.say("Two tenants keep the queues of the GPU full; the measurement takes ten seconds.")
	before, err := s.busy(ctx, a, b)
	if err != nil {
		return err
	}
	select {
	case <-time.After(10 * time.Second): // The measured period.
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := s.busy(ctx, a, b)
	if err != nil {
		return err
	}
	vision, speech := after[0]-before[0], after[1]-before[1]
	if vision+speech <= 0 {
		return fmt.Errorf("neither of the two jobs used the GPU")
	}
	got := 100 * vision / (vision + speech)
	if _, err := s.must(ctx, "lease", "list"); err != nil {
		return err
	}
	s.say("The virtual GPU itself counted: vision %.1f%%, speech %.1f%%.", got, 100-got)
	if math.Abs(got-30) > 5 {
		return fmt.Errorf("vision had %.1f%% of the busy time, want 30%% within 5 points", got)
	}
	return nil
}

// busy is the GPU time of leases since their start, in seconds, by one reading of the virtual GPUs.
func (s *show) busy(ctx context.Context, leases ...*api.Lease) ([]float64, error) {
	var t truth
	if err := s.node.Ctl(ctx, &t, "status"); err != nil {
		return nil, err
	}
	var out []float64
	for _, l := range leases {
		i := slices.IndexFunc(t.GPUs, func(g gpuTruth) bool { return g.Identity.UUID == l.GPUs[0] })
		if i < 0 {
			return nil, fmt.Errorf("the virtual node does not know GPU %s", l.GPUs[0])
		}
		used, ok := t.GPUs[i].Busy[fmt.Sprint(l.PID)]
		if !ok {
			return nil, fmt.Errorf("%s does not use its GPU any more", l.ID)
		}
		out = append(out, used)
	}
	return out, nil
}

func (s *show) crash(ctx context.Context) error {
	s.title("kill -9 of the daemon")
	before, err := s.onlyRunning(ctx)
	if err != nil {
		return err
	}
	writes, err := s.writes(ctx)
	if err != nil {
		return err
	}
	s.node.KillDaemon()
	s.say("gpushared was killed. Its tenants' processes:")
	for i := range before.Leases {
		l := &before.Leases[i]
		if err := s.moves(ctx, l.PID); err != nil {
			return fmt.Errorf("%s did not survive: %w", l.ID, err)
		}
		s.say("  %-24s pid %d runs, not frozen", l.ID, l.PID)
	}
	if err := s.node.StartDaemon(ctx); err != nil {
		return err
	}
	after, err := s.node.Client().Status(ctx)
	if err != nil {
		return err
	}
	for i := range before.Leases {
		l := &before.Leases[i]
		if found := harness.Lease(after, l.Tenant, l.Grant); found == nil || found.ID != l.ID || found.PID != l.PID {
			return fmt.Errorf("the restarted daemon did not find lease %s again", l.ID)
		}
	}
	again, err := s.writes(ctx)
	if err != nil {
		return err
	}
	if again != writes {
		return fmt.Errorf("the restart changed the GPUs: %d writes before, %d after", writes, again)
	}
	s.say("The restarted daemon found all %d leases again and wrote nothing to the GPUs.", len(before.Leases))
	return s.layout(ctx)
}

// onlyRunning waits until the leases of ended jobs are unregistered, and returns the status then.
func (s *show) onlyRunning(ctx context.Context) (st *api.Status, err error) {
	running := 0
	for _, j := range s.jobs {
		select {
		case <-j.Done():
		default:
			running++
		}
	}
	wait, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err = harness.Await(wait, 100*time.Millisecond, fmt.Sprintf("there are not %d leases", running), func() (bool, error) {
		st, err = s.node.Client().Status(wait)
		return err == nil && len(st.Leases) == running, err
	})
	return st, err
}

// moves waits until a process uses the GPU after now: then it runs and is not frozen.
func (s *show) moves(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	first, err := s.used(ctx, pid)
	if err != nil {
		return err
	}
	return harness.Await(ctx, 100*time.Millisecond, "it does not use its GPU any more", func() (bool, error) {
		now, err := s.used(ctx, pid)
		return now > first+0.02, err
	})
}

// used is the GPU time of a process in seconds.
func (s *show) used(ctx context.Context, pid int) (float64, error) {
	var t truth
	if err := s.node.Ctl(ctx, &t, "status"); err != nil {
		return 0, err
	}
	for _, g := range t.GPUs {
		if v, ok := g.Busy[fmt.Sprint(pid)]; ok {
			return v, nil
		}
	}
	return 0, fmt.Errorf("process %d is on no GPU", pid)
}

// writes is the number of calls that changed a virtual GPU.
func (s *show) writes(ctx context.Context) (uint64, error) {
	var t truth
	err := s.node.Ctl(ctx, &t, "status")
	return t.Counters.Writes, err
}

func (s *show) again(ctx context.Context) error {
	s.title("The same file once more")
	r, err := s.must(ctx, "apply", "-f", s.spec)
	if err != nil {
		return err
	}
	if !strings.Contains(r.Out, "no changes") {
		return fmt.Errorf("the second apply of the same file changed something")
	}
	return nil
}
