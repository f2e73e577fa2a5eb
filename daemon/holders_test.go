package daemon

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/mps"
)

func TestUnitOf(t *testing.T) {
	for cgroup, want := range map[string]struct {
		unit  string
		login bool
	}{
		"/": {}, "/system.slice": {}, "/user.slice/user-1000.slice": {login: true},
		"/system.slice/nvidia-dcgm.service":                                          {unit: "nvidia-dcgm.service"},
		"/system.slice/docker-4f2a.scope":                                            {unit: "docker-4f2a.scope"},
		"/system.slice/containerd.service/kubepods-pod1.slice/cri-1.scope":           {unit: "containerd.service"},
		"/user.slice/user-1000.slice/session-3.scope":                                {unit: "session-3.scope", login: true},
		"/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service":    {unit: "jupyter.service", login: true},
		"/gpushare.slice/gpushare-red.slice/gpushare-red-cut.slice/gpushare-a.scope": {unit: "gpushare-a.scope"},
	} {
		if unit, login := unitOf(cgroup); unit != want.unit || login != want.login {
			t.Errorf("%s is of %q, a login: %v; want %+v", cgroup, unit, login, want)
		}
	}
}

func TestHoldersAreNamed(t *testing.T) {
	for want, h := range map[string]deviceHolder{
		"pid 7 (it has just ended)":                                       {pid: 7},
		"pid 7 (python, for 12 s)":                                        {pid: 7, name: "python", age: 12 * time.Second},
		"pid 7 (python, tenant red, lease red-1, a.scope, for 5 min)":     {pid: 7, name: "python", tenant: "red", lease: "red-1", unit: "a.scope", age: 5 * time.Minute},
		"pid 7 (dcgm-exporter, exporter.service, for 3 days; left alone)": {pid: 7, name: "dcgm-exporter", unit: "exporter.service", age: 80 * time.Hour, why: "left alone"},
	} {
		if got := h.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// The nodes of GPUs and instances are told apart by their numbers, whatever they are called.
func TestDeviceNodes(t *testing.T) {
	g := observetest.Device(true, observetest.Instance(9, 4))
	g.Identity.Minor, g.Instances[0].ID, g.Instances[0].Compute[0].ID = 3, 2, 1
	lost := observetest.With(observetest.Device(false), func(g *observe.GPU) { g.Identity.UUID, g.Identity.Error = "GPU-2", "lost" })
	host := isolation.Host{Majors: map[string]uint32{"nvidia-caps": 237}, Caps: isolation.Caps{"gpu3/gi2/access": 426, "gpu3/gi2/ci1/access": 428, "gpu3/gi5/access": 453}}
	var names []string
	nodes := deviceNodes(&host, []observe.GPU{g, lost}, func(name string, major, minor uint32) (fileKey, bool) {
		names = append(names, name)
		return fileKey{rdev: uint64(major)<<32 | uint64(minor)}, true
	})
	slices.Sort(names)
	if d := cmp.Diff([]string{"nvidia-caps/nvidia-cap426", "nvidia-caps/nvidia-cap428", "nvidia3"}, names); d != "" {
		t.Errorf("nodes (-want +got):\n%s", d)
	}
	if at := nodes[fileKey{rdev: 195<<32 | 3}]; !at.whole || at.gpu != observetest.One {
		t.Errorf("the GPU's node stands for %+v", at)
	}
	if at := nodes[fileKey{rdev: 237<<32 | 428}]; at.whole || at.gpu != observetest.One || at.gi != 2 {
		t.Errorf("the compute instance's node stands for %+v", at)
	}
}

// Who is in the way of what: monitors of a reset and of an instance, nobody of a change that needs no reset; and what force
// may do.
func TestMonitorsInAPlan(t *testing.T) {
	whole := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: []string{"7g.40gb"}}}
	resetless := true
	hopper := observetest.With(observetest.Device(false), func(g *observe.GPU) { g.MIG.Resetless = &resetless })
	on := observetest.Device(true, observetest.Instance(9, 4))
	held := opened{gpus: map[gpu.UUID][]int{observetest.One: {42}}}
	heldInstance := opened{caps: map[instanceKey][]int{{observetest.One, on.Instances[0].ID}: {42}}}
	for _, c := range []struct {
		name  string
		have  observe.GPU
		open  opened
		is    deviceHolder
		force bool
		kind  api.Kind // of the refusal; empty: it is planned
		says  string
		stops []string
	}{
		{name: "a reset, over a monitor", have: observetest.Device(false), open: held, kind: api.KindInUse, says: "pid 42 (nvtop)"},
		{name: "a reset, over a monitor, by force", have: observetest.Device(false), open: held, force: true, stops: []string{"stop pid 42 (nvtop)"}},
		{name: "a reset, over the system's", have: observetest.Device(false), open: held, is: deviceHolder{fate: spared, why: "spared"}, kind: api.KindInfeasible, says: "pid 42 (nvtop; spared)"},
		{name: "a reset, over the system's, by force", have: observetest.Device(false), open: held, is: deviceHolder{fate: spared, why: "spared"}, force: true, kind: api.KindInfeasible, says: "pid 42 (nvtop; spared)"},
		{name: "a reset, over a quiesced unit", have: observetest.Device(false), open: held, is: deviceHolder{fate: quiesced}},
		{name: "a reset, over our own", have: observetest.Device(false), open: held, is: deviceHolder{fate: ourOwn}},
		{name: "no reset, over a monitor", have: hopper, open: held},
		{name: "an instance that goes, over a monitor", have: on, open: heldInstance, kind: api.KindInUse, says: "3g.20gb at 4 (pid 42 (nvtop))"},
		{name: "an instance that goes, over a monitor, by force", have: on, open: heldInstance, force: true, stops: []string{"stop pid 42 (nvtop)"}},
		{name: "an instance that goes, over the system's, by force", have: on, open: heldInstance, is: deviceHolder{fate: spared}, force: true, kind: api.KindInfeasible, says: "pid 42 (nvtop)"},
		{name: "an instance that goes, over a quiesced unit", have: on, open: heldInstance, is: deviceHolder{fate: quiesced}},
		{name: "an instance that goes, the GPU is open", have: on, open: held},
		{name: "by force, over a lease's process", have: on, open: heldInstance, is: deviceHolder{lease: "red-1"}, force: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			use := nobody()
			use.opened = c.open
			use.process = func(_ *mps.State, pid int) deviceHolder {
				h := c.is
				h.pid, h.start, h.name = pid, 7, "nvtop"
				return h
			}
			node := &observe.Node{GPUs: []observe.GPU{c.have}}
			p := planGPUs(&desired{gpus: map[gpu.UUID]*api.GPUSpec{observetest.One: whole}}, node, use, authority{Force: c.force, AllowReset: true})
			if err := problemError(p.problems); c.kind != "" || err != nil {
				if err == nil || err.Kind != c.kind || !strings.Contains(err.Message, c.says) {
					t.Errorf("it is refused with %+v, want %s with %q", err, c.kind, c.says)
				}
				told := holdersOf(p.problems, node, use)
				if c.kind == api.KindInUse && (len(told) != 1 || told[0].PID != 42 || told[0].Command != "nvtop" || told[0].GPU != string(observetest.One) || told[0].Stays) {
					t.Errorf("for tools its holders are %+v", told)
				}
				return
			}
			if len(p.steps) == 0 {
				t.Error("nothing is planned")
			}
			var stops []string
			for _, s := range planProcessStops(p.steps, node, use) {
				stops = append(stops, s.Text)
				if s.GPU != string(observetest.One) || s.Phase != step.Narrow || s.Disruption != step.Running {
					t.Errorf("the step is %+v", s)
				}
			}
			if d := cmp.Diff(c.stops, stops); d != "" {
				t.Errorf("stops (-want +got):\n%s", d)
			}
		})
	}
}
