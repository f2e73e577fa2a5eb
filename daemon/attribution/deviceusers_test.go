package attribution

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/isolation"
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
		if unit, login := unitOf(cgroup), stop.InLogin(cgroup); unit != want.unit || login != want.login {
			t.Errorf("%s: unit %q, login %v; want %+v", cgroup, unit, login, want)
		}
	}
}

// A process that has ended since it was listed is no user of a device, also while its parent has not waited for it.
func TestAnEndedProcessIsNoDeviceUser(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	if err != nil {
		t.Fatal(err)
	}
	var attr Attribution
	if u := attr.deviceUser(nil, nil, cmd.Process.Pid); u.Decision != planner.Ended {
		t.Errorf("one that was not waited for is %+v", u)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if u := attr.deviceUser(nil, nil, cmd.Process.Pid); u.Decision != planner.Ended {
		t.Errorf("one that was waited for is %+v", u)
	}
}

// The device nodes of GPUs and instances are identified by their numbers, not by their names.
func TestDeviceNodes(t *testing.T) {
	g := observetest.Device(true, observetest.Instance(9, 4))
	g.Identity.Minor, g.Instances[0].ID, g.Instances[0].Compute[0].ID = 3, 2, 1
	lost := observetest.With(observetest.Device(false), func(g *observe.GPU) { g.Identity.UUID, g.Identity.Error = "GPU-2", "lost" })
	host := isolation.Host{
		Majors: map[string]uint32{"nvidia-caps": 237},
		Caps:   isolation.Caps{"gpu3/gi2/access": 426, "gpu3/gi2/ci1/access": 428, "gpu3/gi5/access": 453},
	}
	var names []string
	nodes := deviceNodes(&host, []observe.GPU{g, lost}, func(name string, major, minor uint32) (fileKey, bool) {
		names = append(names, name)
		return fileKey{rdev: uint64(major)<<32 | uint64(minor)}, true
	})
	slices.Sort(names)
	if d := cmp.Diff([]string{"nvidia-caps/nvidia-cap426", "nvidia-caps/nvidia-cap428", "nvidia3"}, names); d != "" {
		t.Errorf("nodes (-want +got):\n%s", d)
	}
	if at := nodes[fileKey{rdev: 195<<32 | 3}]; !at.whole || at.GPU != observetest.One {
		t.Errorf("the GPU's node gives access to %+v", at)
	}
	if at := nodes[fileKey{rdev: 237<<32 | 428}]; at.whole || at.GPU != observetest.One || at.GI != 2 {
		t.Errorf("the compute instance's node gives access to %+v", at)
	}
}
