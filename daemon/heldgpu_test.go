package daemon

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/scenarios"
)

// Profiles of an A100 with 40 GB.
const (
	profile1g = 19
	profile2g = 14
	profile3g = 9
)

// managedAt is the first memory slice of the managed instance.
const managedAt = 4

// maxCommands is how many commands lead from a refusal to a GPU as desired, or to a process that must end first.
const maxCommands = 3

// heldGPU is a GPU whose commands a test follows: each refusal names the next one.
type heldGPU struct {
	*virtual
	spec   string  // that the administrator applies
	victim *victim // uses an instance
}

// found is what another program, or a crash, left on the GPU.
type found struct {
	name    string
	leave   func(*heldGPU)
	managed bool // it needs no free slices
}

// other creates an instance as another program does: without compute instances, with one that uses all, or with one slice.
func (w *heldGPU) other(profile, start, size uint32, compute ...uint32) uint32 {
	w.Helper()
	g := w.truth()[0]
	gi := uint32(0)
	in, err := w.otherDriver().CreateInstance(
		w.Context(), w.ids[0], gpu.NewInstance{ProfileID: profile, Placement: gpu.Placement{Start: start, Size: size}},
	)
	if err != nil {
		w.Fatalf("cannot create an instance at %d of %+v: %v", start, g.Instances, err)
	}
	gi = in.ID
	if len(compute) == 1 && compute[0] == 0 {
		return gi
	}
	w.withoutCompute(gi)
	for _, n := range compute {
		if _, err := w.otherDriver().CompleteInstance(w.Context(), w.ids[0], gi, []gpu.NewCompute{{Slices: n}}); err != nil {
			w.Fatal(err)
		}
	}
	return gi
}

// full is the argument of other for one compute instance that uses all slices.
const full = 0

func (w *heldGPU) otherDriver() *gpusim.Driver {
	d := w.node.Driver(77)
	w.Cleanup(func() { _ = d.Close() })
	return d
}

// withoutCompute destroys the compute instances of an instance, so that it is an orphan.
func (w *heldGPU) withoutCompute(gi uint32) {
	w.Helper()
	if _, err := w.node.AddFault(gpusim.Fault{Call: "GpuInstanceDestroy", Do: gpusim.FaultFail, Code: gpusim.UnknownError}); err != nil {
		w.Fatal(err)
	}
	if err := w.otherDriver().DestroyInstance(w.Context(), w.ids[0], gi); err == nil {
		w.Fatal("it was destroyed")
	}
	w.node.ClearFaults(0)
	for _, in := range w.truth()[0].Instances {
		if in.ID == gi && len(in.Compute) > 0 {
			w.Fatalf("it still has %d compute instances", len(in.Compute))
		}
	}
}

// use opens a context of the victim on an instance.
func (w *heldGPU) use(gi uint32) {
	w.Helper()
	for _, in := range w.truth()[0].Instances {
		if in.ID != gi || len(in.Compute) == 0 {
			continue
		}
		c, err := w.node.OpenContext(gpusim.ContextSpec{PID: w.victim.pid, Device: string(in.Compute[0].UUID)})
		if err != nil {
			w.Fatal(err)
		}
		w.clientExited, w.closeContext = func() bool { return !w.victim.alive() }, sync.OnceFunc(c.Close)
		return
	}
	w.Fatal("there is no such instance")
}

func managed(w *heldGPU) uint32 {
	w.Helper()
	for _, in := range w.truth()[0].Instances {
		if in.Placement.Start == managedAt {
			return in.ID
		}
	}
	w.Fatal("there is no managed instance")
	return 0
}

// leftBehind are the states of the instances of a GPU whose first instance is a managed 3g.20gb at 4.
var leftBehind = []found{
	{"nothing", func(*heldGPU) {}, true},
	{"a foreign one", func(w *heldGPU) { w.other(profile1g, 0, 1, full) }, false},
	{"two foreign ones", func(w *heldGPU) { w.other(profile1g, 0, 1, full); w.other(profile1g, 2, 1, full) }, false},
	{"a foreign one of the layout", func(w *heldGPU) { w.other(profile3g, 0, 4, full) }, false},
	{"a foreign one in use", func(w *heldGPU) { w.use(w.other(profile1g, 0, 1, full)) }, false},
	{"a foreign one that root uses", func(w *heldGPU) { w.use(w.other(profile1g, 0, 1, full)) }, false},
	{"a foreign one, and one in use", func(w *heldGPU) { w.other(profile1g, 0, 1, full); w.use(w.other(profile1g, 1, 1, full)) }, false},
	{
		"a foreign one, and one that root uses",
		func(w *heldGPU) { w.other(profile1g, 0, 1, full); w.use(w.other(profile1g, 1, 1, full)) },
		false,
	},
	{"an orphan", func(w *heldGPU) { w.other(profile1g, 0, 1) }, false},
	{"an orphan of the layout", func(w *heldGPU) { w.other(profile3g, 0, 4) }, false},
	{"two orphans", func(w *heldGPU) { w.other(profile1g, 0, 1); w.other(profile2g, 2, 2) }, false},
	{"an orphan and a foreign one in use", func(w *heldGPU) { w.other(profile1g, 0, 1); w.use(w.other(profile1g, 1, 1, full)) }, false},
	{"one slice of a foreign one", func(w *heldGPU) { w.other(profile3g, 0, 4, 1) }, false},
	{"one slice of a foreign one, in use", func(w *heldGPU) { w.use(w.other(profile3g, 0, 4, 1)) }, false},
	{"one slice of a foreign one, that root uses", func(w *heldGPU) { w.use(w.other(profile3g, 0, 4, 1)) }, false},
	{"the managed one is in use", func(w *heldGPU) { w.use(managed(w)) }, true},
	{"root uses the managed one", func(w *heldGPU) { w.use(managed(w)) }, true},
	{"the managed one is an orphan", func(w *heldGPU) { w.withoutCompute(managed(w)) }, true},
	{"the managed one has one slice", func(w *heldGPU) { w.sliced(false) }, true},
	{"the managed one has one slice, in use", func(w *heldGPU) { w.sliced(true) }, true},
	{"the managed one has one slice, that root uses", func(w *heldGPU) { w.sliced(true) }, true},
	{"the managed one was destroyed", func(w *heldGPU) {
		if err := w.otherDriver().DestroyInstance(w.Context(), w.ids[0], managed(w)); err != nil {
			w.Fatal(err)
		}
	}, true},
}

// sliced gives the managed instance one compute instance of one slice instead of its own.
func (w *heldGPU) sliced(inUse bool) {
	w.Helper()
	gi := managed(w)
	w.withoutCompute(gi)
	if _, err := w.otherDriver().CompleteInstance(w.Context(), w.ids[0], gi, []gpu.NewCompute{{Slices: 1}}); err != nil {
		w.Fatal(err)
	}
	if inUse {
		w.use(gi)
	}
}

// specOf is a spec of GPU 0 with this mode, in flow style.
func specOf(mode string) string {
	return "version: v1\nnode: {enforce: on, isolation: {logins: open}}\ngpus:\n  - {select: {index: 0}, " + mode + "}\n"
}

// becomes is how a GPU with a managed 3g.20gb got into its state.
type becomes struct {
	name string
	mode string // in the spec that is in force, or that was refused
	held bool
	full bool // without free slices
	do   func(*heldGPU, found)
}

// heldBy applies the spec and lets a call fail, before something is left on the GPU.
func heldBy(calls ...string) func(*heldGPU, found) {
	return func(w *heldGPU, f found) {
		for _, call := range calls {
			if _, err := w.node.AddFault(gpusim.Fault{Call: call, Do: gpusim.FaultFail, Code: gpusim.UnknownError, Times: -1}); err != nil {
				w.Fatal(err)
			}
		}
		if _, op, refusal := w.apply(w.spec, "?allow-reset=1"); refusal != nil || op == nil || op.State != "degraded" {
			w.Fatalf("it is not held: %+v, %v", op, refusal)
		}
		w.node.ClearFaults(0)
		f.leave(w)
	}
}

func leftAfter(w *heldGPU, f found) {
	if _, op, refusal := w.apply(w.spec, "?allow-reset=1"); refusal != nil || op != nil && op.State != "done" {
		w.Fatalf("it is not applied: %+v, %v", op, refusal)
	}
	f.leave(w)
}

func leftBefore(w *heldGPU, f found) { f.leave(w) }

// afterBoot leaves it on the GPU before the daemon creates the layout again.
func afterBoot(w *heldGPU, f found) {
	leftAfter(w, found{leave: func(*heldGPU) {}})
	w.end()
	w.node.Reboot()
	w.writeHost()
	clear(w.port.all)
	w.other(profile3g, 4, 4, full)
	f.leave(w)
	w.startDaemon()
}

var states = []becomes{
	{"held", "mode: mig, mig: {layout: [3g.20gb, 3g.20gb]}", true, false, heldBy("GpuInstanceCreateComputeInstance*")},
	{
		"held with a half of an instance",
		"mode: mig, mig: {layout: [3g.20gb, 3g.20gb]}",
		true,
		true,
		heldBy("GpuInstanceCreateComputeInstance*", "GpuInstanceDestroy"),
	},
	{"held before the largest", "mode: mig, mig: {layout: [7g.40gb]}", true, false, heldBy("GpuInstanceDestroy", "ComputeInstanceDestroy")},
	{"held before MIG mode is off", "mode: timeslice", true, false, heldBy("GpuInstanceDestroy", "ComputeInstanceDestroy")},
	{"after a boot", "mode: mig, mig: {layout: [3g.20gb, 3g.20gb]}", false, false, afterBoot},
	{"in force", "mode: mig, mig: {layout: [3g.20gb]}", false, false, leftAfter},
	{"dynamic", "mode: mig, mig: {dynamic: true}", false, false, leftAfter},
	{"before the largest", "mode: mig, mig: {layout: [7g.40gb]}", false, false, leftBefore},
	{"before MIG mode is off", "mode: timeslice", false, false, leftBefore},
}

// Of every state of a GPU with instances in the way, each refusal and each condition names one command, and the commands lead
// to a GPU as the spec says, or to a process that must end first. They never lead in a circle.
func TestAdviceLeadsToTheSpec(t *testing.T) {
	for i, s := range states {
		for j, f := range leftBehind {
			if s.full && !f.managed || !enumeration.Runs(i*len(leftBehind)+j, 13) {
				continue
			}
			t.Run(s.name+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				entries := []string{"gpu retry 0", "apply -f node.yaml"}
				for n := 0; n < len(entries); n++ {
					for _, more := range followed(t, &s, &f, entries[n]) {
						if !slices.Contains(entries, more) {
							entries = append(entries, more)
						}
					}
				}
			})
		}
	}
}

// followed follows the advice from one command on. It returns the other commands that a user could begin with.
func followed(t *testing.T, s *becomes, f *found, entry string) (others []string) {
	t.Helper()
	v := newProcess(t, strings.Contains(f.name, "root"))
	defer v.end()
	synctest.Test(t, func(t *testing.T) {
		w := &heldGPU{virtual: newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}), victim: v, spec: specOf(s.mode)}
		w.startDaemon()
		if _, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [3g.20gb]}"), ""); refusal != nil || op.State != "done" {
			t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
		}
		s.do(w, *f)
		w.waitIdle(nil)
		if g := w.statusNow().GPUs[0]; s.held && g.State != "held" && g.State != "ok" {
			t.Fatalf("it is %s", g.State)
		}
		others = w.adviceNow()
		for _, in := range w.truth()[0].Instances {
			others = append(others, fmt.Sprintf("mig remove 0 %d", in.Placement.Start), fmt.Sprintf("mig import 0 %d", in.Placement.Start))
		}
		w.follow(entry)
	})
	return others
}

// follow carries out a command, and then what it names, until the GPU is as desired.
func (w *heldGPU) follow(command string) {
	w.Helper()
	var path []string
	refused, after := false, 0 // commands after the first refusal
	for n := 0; ; n++ {
		next, waits, refusal := w.command(command)
		said := "accepted"
		if refusal != nil {
			said = refusal.Message + " (" + refusal.Hint + ")"
			refused = true
		}
		path = append(path, command+": "+said)
		switch {
		case waits && (next == "" || after == maxCommands):
			return
		case next == "" && w.asDesired():
			return // Also if the command was refused: it is not needed.
		case next == "":
			w.Errorf(
				"no command is named, and the GPU is %+v, with %q:\n  %s", w.statusNow().GPUs[0], w.adviceNow(),
				strings.Join(path, "\n  "),
			)
			return
		case after == maxCommands || n == 2*maxCommands:
			w.Errorf("it is not as desired after %d commands:\n  %s", n+1, strings.Join(path, "\n  "))
			return
		}
		if refused {
			after++
		}
		command = next
	}
}

var quoted = regexp.MustCompile(`'gpushare ([^']+)'`)

// named are the commands that a text names.
func named(text string) []string {
	var out []string
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// adviceNow are the commands that the status names.
func (w *heldGPU) adviceNow() []string {
	var out []string
	for _, c := range w.statusNow().Node.Conditions {
		if c.GPU == string(w.ids[0]) {
			out = append(out, named(c.Hint)...)
		}
	}
	return out
}

// command carries out one command of gpushare. next is the one that it names, or that the status names after it; waits is
// true if the GPU is as desired once named processes have ended.
func (w *heldGPU) command(line string) (next string, waits bool, refusal *api.Error) {
	w.Helper()
	words := strings.Fields(line)
	flags := map[string]bool{}
	words = slices.DeleteFunc(words, func(s string) bool { f := strings.HasPrefix(s, "--"); flags[s] = flags[s] || f; return f })
	query := "?"
	for _, f := range []string{"force", "allow-reset"} {
		if flags["--"+f] {
			query += f + "=1&"
		}
	}
	var op *api.Operation
	var res api.ApplyResult
	switch {
	case len(words) == 3 && words[0] == "gpu" && words[1] == "retry":
		op = &api.Operation{}
		if refusal = w.do(http.MethodPost, "/v1/gpus/"+words[2]+"/retry"+query, "", op); refusal == nil {
			w.waitIdle(nil)
		}
	case len(words) > 3 && words[0] == "mig" && (words[1] == "remove" || words[1] == "import"):
		body := fmt.Sprintf(`{"gpu": %q, "start": [%s]}`, words[2], strings.Join(words[3:], ","))
		refusal = w.do(http.MethodPost, "/v1/mig/"+words[1], body, &res)
		w.waitIdle(res.Operation)
	case len(words) == 3 && words[0] == "apply" && words[1] == "-f":
		res, _, refusal = w.apply(w.spec, query+"file="+words[2])
	default:
		w.Fatalf("this is no command: %q", line)
	}
	if refusal == nil {
		if w.asDesired() {
			return "", false, nil
		}
		if all := w.heldAdvice(); len(all) > 0 {
			return all[0], false, nil
		}
		return "", false, nil
	}
	all := named(refusal.Hint)
	if len(all) > 1 {
		w.Errorf("%s: more than one command is named: %q", line, refusal.Hint)
	}
	if waits = strings.Contains(refusal.Hint, "wait until they end"); waits &&
		!strings.Contains(refusal.Message, fmt.Sprintf("pid %d (", w.victim.pid)) {
		w.Errorf("%s: it waits for no named process: %s (%s)", line, refusal.Message, refusal.Hint)
	}
	return strings.Join(all[:min(len(all), 1)], ""), waits, refusal
}

// heldAdvice are the commands that the status names for a GPU that is not as the spec says.
func (w *heldGPU) heldAdvice() []string {
	var out []string
	for _, c := range w.statusNow().Node.Conditions {
		if c.GPU == string(w.ids[0]) && (c.Kind == "held" || c.Kind == "drift") {
			out = append(out, named(c.Hint)...)
		}
	}
	return out
}

// asDesired reports whether the GPU is as the spec of the administrator says.
func (w *heldGPU) asDesired() bool {
	s := w.statusNow()
	return s.GPUs[0].State == "ok" && len(w.heldAdvice()) == 0 &&
		!slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool { return c.GPU == string(w.ids[0]) && c.Kind != "foreign" })
}

// Foreign instances and orphans are shown while a GPU is held, each with the commands for it.
func TestForeignInstancesAreShownWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &heldGPU{virtual: newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}), spec: specOf(states[0].mode)}
		w.startDaemon()
		if _, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [3g.20gb]}"), ""); refusal != nil || op.State != "done" {
			t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
		}
		states[0].do(w, found{leave: func(w *heldGPU) { w.other(profile1g, 0, 1, full); w.other(profile1g, 2, 1) }})
		w.waitIdle(nil)
		s := w.statusNow()
		if s.GPUs[0].State != "held" {
			t.Fatalf("it is %s", s.GPUs[0].State)
		}
		var starts []uint32
		for _, in := range s.GPUs[0].MIG.Instances {
			if in.Foreign {
				starts = append(starts, in.Placement.Start)
			}
		}
		slices.Sort(starts)
		if !slices.Equal(starts, []uint32{0, 2}) {
			t.Errorf("foreign are those at %d", starts)
		}
		advice := w.adviceNow()
		for _, want := range []string{"mig import 0 0", "mig remove 0 0", "mig import 0 2", "mig remove 0 2", "gpu retry 0"} {
			if !slices.Contains(advice, want) {
				t.Errorf("the status names %q, and not %q", advice, want)
			}
		}
		if !slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool {
			return c.Message == "GPU 0: 1g.5gb at 2 is not managed by gpushare, and has no compute instance"
		}) {
			t.Errorf("the orphan is not shown: %+v", s.Node.Conditions)
		}
	})
}
