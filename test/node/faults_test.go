package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/scenarios"
)

// failure is one way in which a call fails.
type failure struct {
	name string
	do   gpusim.Fault
}

var failures = []failure{
	{"IN_USE", gpusim.Fault{Do: gpusim.FaultFail, Code: gpusim.InUse}},
	{"INSUFFICIENT_RESOURCES", gpusim.Fault{Do: gpusim.FaultFail, Code: gpusim.InsufficientResources}},
	{"GPU_IS_LOST", gpusim.Fault{Do: gpusim.FaultLose}},
	{"a hang", gpusim.Fault{Do: gpusim.FaultHang}},
}

// chosen is one call of one change that fails in one way.
type chosen struct {
	scenario scenarios.Scenario
	failure
	place string // among the calls that change GPU 0
	nth   int
}

// choice selects three calls of each change: the first, the middle and the last. The failures rotate, so that each of them is
// combined with each place within four changes.
func choice() []chosen {
	var out []chosen
	for _, s := range scenarios.All() {
		for _, at := range []struct {
			place string
			nth   int
		}{{"first", 1}, {"middle", (s.Changes + 1) / 2}, {"last", s.Changes}} {
			out = append(out, chosen{s, failures[len(out)%len(failures)], at.place, at.nth})
		}
	}
	return out
}

// The choice combines every failure with every place, also if changes are added or removed.
func TestEveryFailureMeetsEveryPlace(t *testing.T) {
	met := map[string]bool{}
	for _, c := range choice() {
		met[c.place+c.failure.name] = true
	}
	for _, f := range failures {
		for _, place := range []string{"first", "middle", "last"} {
			if !met[place+f.name] {
				t.Errorf("no change's %s call fails with %s", place, f.name)
			}
		}
	}
}

// TestThreeCallsFailOnce fails three driver calls of each change on the shipped programs. TestEveryCallFailsOnce of package
// daemon fails every call. After the failure and again after its correction all invariants hold, as observed from outside.
func TestThreeCallsFailOnce(t *testing.T) {
	for i, c := range choice() {
		if !enumeration.Runs(i, 5) {
			continue // A sample with different places and failures.
		}
		t.Run(
			fmt.Sprintf("%s/the %s call, %d of %d, with %s", c.scenario.Name, c.place, c.nth, c.scenario.Changes, c.failure.name),
			func(t *testing.T) {
				t.Parallel()
				p := newChange(t, &c)
				f := c.do
				f.Call, f.GPU, f.Nth = "write", "0", c.nth
				p.begin(f)
				p.invariants("after the fault")
				if f.Do != gpusim.FaultHang { // A daemon that starts while a call hangs has a test of its own.
					p.killed()
					p.invariants("after the fault and kill -9")
				}
				p.clearFaults()
				p.invariants("corrected")
				p.applied("corrected")
				if f.Do == gpusim.FaultHang {
					p.killed()
					p.invariants("corrected, after kill -9")
					p.applied("corrected, after kill -9")
				}
				if t.Failed() {
					t.Log(daemonLog(p.Node))
				}
			},
		)
	}
}

// changeFixture is a change on the shipped programs.
type changeFixture struct {
	*testing.T
	*harness.Node
	scenarios.Scenario

	models   []*gpusim.Model
	before   []string // layouts
	foreign  []string // instances of others on GPU 0, by name
	job      *harness.Job
	lease    string
	instance uint32 // of the job, its id
}

// newChange starts the node in the state before the change.
func newChange(t *testing.T, c *chosen) *changeFixture {
	t.Helper()
	p := &changeFixture{T: t, Scenario: c.scenario}
	var file strings.Builder
	branch, _, _ := strings.Cut(cmp.Or(p.Driver, "580"), ".")
	fmt.Fprintf(&file, "driver: %q\ngpus:\n", branch)
	for i, b := range p.Boards {
		m, err := nodefile.Model(b.Model)
		if err != nil {
			t.Fatal(err)
		}
		p.models = append(p.models, m)
		fmt.Fprintf(&file, "  - {model: %s, mig: %v", b.Model, b.MIG)
		if i == 0 && p.Foreign != "" { // It exists before gpushare's instances, at a placement that leaves enough capacity.
			fmt.Fprintf(&file, ", layout: [%s@6]", p.Foreign)
			p.foreign = []string{p.Foreign}
		}
		file.WriteString("}\n")
	}
	p.Node = newNode(t, file.String())
	if c.do.Do == gpusim.FaultHang {
		p.Settings = map[string]string{"driver_change_timeout": "5s"}
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, p.Node, p.SpecFrom())
	if p.Busy != "" {
		p.startJob()
	}
	for i := range p.Boards {
		p.before = append(p.before, p.layoutOf(i))
	}
	return p
}

// startJob starts a lease that uses an instance of GPU 0.
func (p *changeFixture) startJob() {
	p.Helper()
	p.job, p.lease = begin(p.T, p.Node, "red", scenarios.Grant(p.Busy), p.Burn("--memory", "64MiB", "--hold")...)
	err := harness.Await(soon(p.T), 10*time.Millisecond, "the job does not run", func() (bool, error) {
		for _, q := range p.truth()[0].Processes {
			if q.PID == p.job.PID() && q.GI != nil {
				p.instance = *q.GI
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		p.Fatal(err)
	}
}

// order sends an order to the virtual node.
func (p *changeFixture) order(o server.Command) server.Result {
	p.Helper()
	a, err := server.Control(soon(p.T), p.Root(), o)
	if err != nil {
		p.Fatal(err)
	}
	return a
}

// begin runs the change or the boot of the scenario with one failing call, and waits for its end.
func (p *changeFixture) begin(f gpusim.Fault) {
	p.Helper()
	if p.Boots {
		p.StopDaemon()
		if p.Reloads {
			p.order(server.Command{Do: server.DoDriverReload, Force: true})
		} else {
			p.order(server.Command{Do: server.DoReboot})
		}
	}
	p.order(server.Command{Do: server.DoFaultAdd, Fault: &f})
	p.Cleanup(func() { // So that the node can be emptied in every case.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if _, err := server.Control(ctx, p.Root(), server.Command{Do: server.DoFaultClear}); err != nil {
			p.Log(err)
		}
	})
	if p.Boots {
		if err := p.StartDaemon(soon(p.T)); err != nil {
			p.Fatal(err)
		}
	} else {
		c := p.Client()
		res, err := c.Apply(soon(p.T), []byte(p.SpecTo()), client.ApplyOptions{AllowReset: p.AllowReset, Force: p.Force})
		if err != nil {
			p.Fatalf("the change is refused: %v", err)
		}
		if _, err := c.Follow(soon(p.T), res.Operation, func(*api.Operation) {}); err != nil {
			p.Fatalf("the change does not end: %v", err)
		}
	}
	err := harness.Await(soon(p.T), 10*time.Millisecond, "the call never came", func() (bool, error) {
		a, err := server.Control(soon(p.T), p.Root(), server.Command{Do: server.DoFaultList})
		return err == nil && len(a.Faults) == 1 && a.Faults[0].Hits == 1, err
	})
	if err != nil {
		p.Fatalf("%v\n%s", err, daemonLog(p.Node))
	}
	p.calm()
}

// calm waits until no operation runs after two converges: the first may find layouts to restore.
func (p *changeFixture) calm() *api.Status {
	p.Helper()
	patience := soon(p.T)
	for undisturbed := 0; ; {
		s := awaitChange(p.T, p.Node)
		if patience.Err() != nil {
			p.Fatalf("an operation is always running\n%s", daemonLog(p.Node))
		}
		if s.Node.Operation != "" || slices.ContainsFunc(s.GPUs, func(g api.GPUStatus) bool { return g.State == "changing" }) {
			undisturbed = 0
		} else if undisturbed++; undisturbed == 2 {
			return s
		}
	}
}

// killed ends the daemon with SIGKILL and starts it again.
func (p *changeFixture) killed() {
	p.Helper()
	p.KillDaemon()
	if err := p.StartDaemon(soon(p.T)); err != nil {
		p.Fatal(err)
	}
	p.calm()
}

// clearFaults does what an administrator does after a fault.
func (p *changeFixture) clearFaults() {
	p.Helper()
	p.order(server.Command{Do: server.DoFaultClear})
	if slices.ContainsFunc(p.truth(), func(g gpusim.GPUView) bool { return g.Lost }) {
		p.reboot() // A GPU that fell off the bus needs a boot.
	}
	for i, g := range p.calm().GPUs {
		if g.State == "ok" {
			continue
		}
		r := retryGPU(p.T, p.Node, fmt.Sprint(i))
		if r.Code != 0 && !p.AllowReset { // A retry has no authority; the following apply has.
			p.Errorf("gpu retry of GPU %d, which is %s (%s), exits with %d: %s", i, g.State, g.Reason, r.Code, r.Err)
		}
	}
	p.calm() // After a boot the layouts of other GPUs may still be restored.
	args := []string{"apply", "-f", "-"}
	if p.AllowReset {
		args = append(args, "--allow-reset")
	}
	r := p.CLIIn(soon(p.T), p.SpecTo(), args...)
	if r.Code != 0 || !p.AllowReset && !strings.Contains(r.Out, "no changes") {
		p.Errorf("after the retry of the GPUs a second apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	p.calm()
}

// reboot boots the host. No process survives it.
func (p *changeFixture) reboot() {
	p.Helper()
	if p.job != nil {
		p.job.Kill()
		p.job = nil
	}
	p.foreign = nil
	p.StopDaemon()
	p.order(server.Command{Do: server.DoReboot})
	if err := p.StartDaemon(soon(p.T)); err != nil {
		p.Fatal(err)
	}
}

// applied checks that every GPU is as desired, and that a tenant gets a lease on each instance.
func (p *changeFixture) applied(where string) {
	p.Helper()
	for i, g := range status(p.T, p.Node).GPUs {
		if names := p.namesOf(i); g.State != "ok" || !slices.Equal(names, p.Desired(i, p.foreign)) {
			p.Errorf("%s: GPU %d is %s (%s) and has %v, want %v", where, i, g.State, g.Reason, names, p.Desired(i, p.foreign))
		}
	}
	for _, profile := range strings.Fields(p.To[0]) {
		if profile == "off" || strings.Contains(profile, "c.") || profile == p.Busy {
			continue
		}
		if r := p.CLI(soon(p.T), "run", "-q", "-t", "red", "--grant", scenarios.Grant(profile), "--", "true"); r.Code != 0 {
			p.Errorf("%s: no lease on a %s: exit code %d: %s", where, profile, r.Code, r.Err)
		}
		return
	}
}

// truth is the state of the GPUs in the virtual node.
func (p *changeFixture) truth() []gpusim.GPUView {
	p.Helper()
	return p.order(server.Command{Do: server.DoStatus}).Status.GPUs
}

// layoutOf is the MIG mode and the instances of a GPU in the virtual node, with ids, placements and compute instances.
func (p *changeFixture) layoutOf(i int) string {
	p.Helper()
	g := p.truth()[i]
	out := []string{fmt.Sprintf("MIG %v", g.MIG.Current)}
	for _, in := range g.Instances {
		s := fmt.Sprintf("%d@%d", in.ProfileID, in.Placement.Start)
		for _, c := range in.Compute {
			s += fmt.Sprintf("/%d@%d", c.ProfileID, c.Placement.Start)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// namesOf is the sorted names of the instances of a GPU in the virtual node.
func (p *changeFixture) namesOf(i int) []string {
	p.Helper()
	var out []string
	for _, in := range p.truth()[i].Instances {
		m := p.models[i]
		profile := m.Profiles[slices.IndexFunc(m.Profiles, func(o gpusim.Profile) bool { return o.ID == in.ProfileID })]
		if len(in.Compute) == 0 {
			out = append(out, profile.Name+" without compute")
		}
		for _, c := range in.Compute {
			if name := profile.Name; len(in.Compute) == 1 && c.Placement.Size == profile.Slices {
				out = append(out, name)
			} else {
				out = append(out, fmt.Sprintf("%dc.%s", c.Placement.Size, name))
			}
		}
	}
	slices.Sort(out)
	return out
}

// working reports whether the job still runs in its instance.
func (p *changeFixture) working() bool {
	p.Helper()
	select {
	case <-p.job.Done():
		return false
	default:
	}
	return slices.ContainsFunc(
		p.truth()[0].Processes, func(q gpu.Process) bool { return q.PID == p.job.PID() && q.GI != nil && *q.GI == p.instance },
	)
}
