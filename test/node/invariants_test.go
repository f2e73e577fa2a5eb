package node

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/hostroot"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/test/scenarios"
)

// invariants checks I1 to I7 of a node after a change, from outside the daemon: in its API, in the virtual GPUs and in the
// kernel.
func (p *changeFixture) invariants(where string) {
	p.Helper()
	report := func(id, format string, args ...any) {
		p.Helper()
		p.Errorf("%s: %s: %s", where, id, fmt.Sprintf(format, args...))
	}
	st := status(p.T, p.Node)
	p.specKept(st, report)
	p.instancesExplained(st, report)
	if p.Force {
		p.stopped(report)
	} else {
		p.jobUndisturbed(st, report)
	}
	p.limitsTrue(st, report)
	p.isolationActive(st, report)
	p.noWrites(report)
	memoryFits(st, report)
}

type reporter func(id, format string, args ...any)

// I1: the acknowledged spec is in force, and no change is open.
func (p *changeFixture) specKept(st *api.Status, report reporter) {
	p.Helper()
	if st.Node.Operation != "" {
		report("I1", "operation %s is still open", st.Node.Operation)
	}
	c := p.Client()
	defer c.Close()
	doc, err := c.Spec(soon(p.T))
	if err != nil {
		p.Fatal(err)
	}
	if got, want := p.written(doc.YAML), p.written(p.SpecTo()); got != want {
		report("I1", "the spec in force is not the acknowledged one:\n%s", got)
	}
}

// written is a spec in the form in which the daemon stores it.
func (p *changeFixture) written(text string) string {
	p.Helper()
	s, err := spec.Decode("spec", []byte(text))
	if err != nil {
		p.Fatal(err)
	}
	s.Base = nil // The answer has a generation.
	b, err := spec.Encode(s)
	if err != nil {
		p.Fatal(err)
	}
	return string(b)
}

// I2: every GPU is as the spec says, or as before, or reported as lost or stuck. Foreign instances are reported, and no others.
func (p *changeFixture) instancesExplained(st *api.Status, report reporter) {
	p.Helper()
	for i := range p.Boards {
		g := &st.GPUs[i]
		names, layout := p.namesOf(i), p.layoutOf(i)
		if g.State != "ok" && g.Reason == "" {
			report("I2", "GPU %d is %s for no reason", i, g.State)
		}
		switch g.State {
		case "ok":
			if desired := p.Desired(i, p.foreign); !slices.Equal(names, desired) {
				report("I2", "GPU %d is ok and has %v, want %v", i, names, desired)
			}
		case "held":
			if layout != p.before[i] && !p.Boots && !strings.Contains(g.Reason, "could not be undone") {
				report("I2", "GPU %d is held (%s) and has %s, had %s", i, g.Reason, layout, p.before[i])
			}
		case "lost", "stuck", "unreadable":
		default:
			report("I2", "GPU %d is %s", i, g.State)
		}
	}
	foreign := 0
	for _, c := range st.Node.Conditions {
		if c.Kind == "foreign" {
			foreign++
		}
	}
	if st.GPUs[0].State == "ok" && foreign != len(p.foreign) {
		report("I2", "%d instances are reported as foreign, want %d", foreign, len(p.foreign))
	}
}

// I4: the job still runs with the same lease in the same instance. A lost GPU ends all its jobs.
func (p *changeFixture) jobUndisturbed(st *api.Status, report reporter) {
	p.Helper()
	if p.job == nil || p.truth()[0].Lost {
		return
	}
	if !p.working() {
		report("I4", "the job in instance %d has ended: %s", p.instance, p.job.Output())
	}
	if l := leaseByID(st, p.lease); l == nil || l.State != api.LeaseRunning {
		report("I4", "its lease is %+v", l)
	}
}

// I4 with --force: the job in the way was stopped gracefully, before a call failed.
func (p *changeFixture) stopped(report reporter) {
	p.Helper()
	if p.job == nil {
		return
	}
	if code := awaitEnd(p.T, p.job); code == 0 || code == -int(syscall.SIGKILL) {
		report("I4", "the job in the way ended with %d, want its exit code after SIGTERM: %s", code, p.job.Output())
	}
}

// I5: a limit that is shown as in force is that of the kernel, and one that is not in force has a reason.
func (p *changeFixture) limitsTrue(st *api.Status, report reporter) {
	p.Helper()
	gib := scenarios.MemoryTo
	if p.Boots {
		gib = scenarios.MemoryFrom
	}
	if len(st.Tenants) != 1 || len(st.Tenants[0].Limits) == 0 {
		report("I5", "no limit of the tenant is shown: %+v", st.Tenants)
		return
	}
	for _, l := range st.Tenants[0].Limits {
		if l.Name != "memory.max" {
			continue
		}
		if l.Desired != fmt.Sprintf("%dGiB", gib) {
			report("I5", "the desired memory limit is %q, the spec says %d GiB", l.Desired, gib)
		}
		set := p.memoryLimits()
		switch {
		case l.InForce == "" && l.Reason == "":
			report("I5", "memory is not limited, and no reason is given")
		case l.InForce != "" && !slices.Equal(set, []string{fmt.Sprint(gib << 30)}):
			report("I5", "the memory limit shown is %s, the kernel has %v", l.InForce, set)
		}
	}
}

// memoryLimits returns the memory limits of the slices in the kernel.
func (p *changeFixture) memoryLimits() []string {
	var out []string
	p.eachCgroup(func(dir string) {
		if b, err := os.ReadFile(filepath.Join(dir, "memory.max")); err == nil && strings.TrimSpace(string(b)) != "max" {
			out = append(out, strings.TrimSpace(string(b)))
		}
	})
	return out
}

// eachCgroup calls each for every cgroup of the node.
func (p *changeFixture) eachCgroup(each func(dir string)) {
	h, err := cgroup.FindHierarchy()
	if err != nil || !h.Exists(p.Subtree()) {
		return
	}
	err = filepath.WalkDir(h.Dir(p.Subtree()), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			each(path)
		}
		return nil // A cgroup that was removed meanwhile has no limits.
	})
	if err != nil {
		p.Error(err)
	}
}

// I3 and a part of I8: a lease has the device rules that status shows, no rule allows a capability of no instance (the next
// instance at the placement could be shared), and no process is frozen.
func (p *changeFixture) isolationActive(st *api.Status, report reporter) {
	p.Helper()
	withRules := map[string]bool{} // by directory
	p.eachCgroup(func(dir string) {
		if b, err := os.ReadFile(filepath.Join(dir, "cgroup.events")); err == nil && strings.Contains(string(b), "frozen 1") {
			report("I8", "%s is frozen", dir)
		}
		rules, ok, err := devices.Rules(dir)
		if err != nil || !ok {
			return // The rules cannot be read here, and then status shows none; or the cgroup was removed.
		}
		withRules[dir] = true
		for _, r := range rules {
			if r.Type == 'c' && r.Major == hostroot.MajorCaps && !p.present(r.Minor) {
				report("I3", "%s allows capability %d, which belongs to no instance", dir, r.Minor)
			}
		}
	})
	notIsolated := slices.ContainsFunc(
		st.Node.Conditions, func(c api.Condition) bool { return strings.Contains(c.Message, "device rules are not enforced") },
	)
	if !notIsolated && len(withRules) == 0 {
		report("I3", "device rules are reported as enforced, and no cgroup of the node has any")
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return
	}
	for i := range st.Leases {
		l := &st.Leases[i]
		if !l.Isolation.Devices {
			continue
		}
		active := false
		for dir := h.Dir(l.Isolation.Cgroup); cgroup.Below(dir, h.Dir(p.Subtree())); dir = filepath.Dir(dir) {
			active = active || withRules[dir]
		}
		if !active {
			report("I3", "status shows device rules for lease %s, and %s has none", l.ID, l.Isolation.Cgroup)
		}
	}
}

// present reports whether a capability belongs to an instance, or to a lost GPU, which no process can open.
func (p *changeFixture) present(minor uint32) bool {
	if minor == gpusim.CapMonitor {
		return true
	}
	for _, g := range p.truth() {
		if at := g.Identity.Minor; g.Lost && minor >= uint32(gpusim.CapGI(at, 0)) && minor < uint32(gpusim.CapGI(at+1, 0)) {
			return true
		}
		for _, in := range g.Instances {
			if minor == uint32(gpusim.CapGI(g.Identity.Minor, in.ID)) {
				return true
			}
			for _, c := range in.Compute {
				if minor == uint32(gpusim.CapCI(g.Identity.Minor, in.ID, c.ID)) {
					return true
				}
			}
		}
	}
	return false
}

// I7: the memory of the grants with a live lease is at most that of their GPU. Each grant counts once on a GPU.
func memoryFits(st *api.Status, report reporter) {
	for i := range st.GPUs {
		g, grants, sum := &st.GPUs[i], map[string]bool{}, uint64(0)
		for k := range st.Leases {
			l := &st.Leases[k]
			if name := l.Tenant + "/" + l.Grant; slices.Contains(l.GPUs, g.UUID) && l.GPUMemory != nil && l.State != api.LeaseEnded &&
				(l.Kind == api.ModeMIG || !grants[name]) {
				grants[name] = true
				sum += l.GPUMemory.Limit
			}
		}
		if sum > g.Memory.Total {
			report("I7", "GPU %d has leases with %d bytes of GPU memory, of %d", i, sum, g.Memory.Total)
		}
	}
}

// I6: another converge changes nothing.
func (p *changeFixture) noWrites(report reporter) {
	p.Helper()
	c := p.Client()
	defer c.Close()
	count := func() (gpus, daemon uint64) {
		all, err := c.Counters(soon(p.T))
		if err != nil {
			p.Fatal(err)
		}
		return p.order(server.Command{Do: server.DoStatus}).Status.Counters.Writes, all["writes"]
	}
	gpus, daemon := count()
	for range 2 {
		if err := c.Reload(soon(p.T)); err != nil {
			p.Errorf("cannot converge again: %v", err)
		}
	}
	if g, d := count(); g != gpus || d != daemon {
		report("I6", "converging again wrote %d times to the GPUs, and the daemon counts %d", g-gpus, d-daemon)
	}
}
