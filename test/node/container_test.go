package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// described is the CDI device of a grant that a container runtime reads; nil if there is none.
func described(t *testing.T, n *harness.Node, device string) *cdiDevice {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.Dir, "cdi", "gpushare-"+device+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Kind    string      `json:"kind"`
		Devices []cdiDevice `json:"devices"`
	}
	if err := json.Unmarshal(b, &file); err != nil || file.Kind != "gpushare.dev/gpu" || len(file.Devices) != 1 ||
		file.Devices[0].Name != device {
		t.Fatalf("%s is described as (%v):\n%s", device, err, b)
	}
	return &file.Devices[0]
}

type cdiDevice struct {
	Name string `json:"name"`
	Edit struct {
		Env         []string `json:"env"`
		DeviceNodes []struct {
			Path     string `json:"path"`
			HostPath string `json:"hostPath"`
		} `json:"deviceNodes"`
	} `json:"containerEdits"`
}

func (d *cdiDevice) has(path string) bool {
	return d != nil && slices.ContainsFunc(d.Edit.DeviceNodes, func(n struct {
		Path     string `json:"path"`
		HostPath string `json:"hostPath"`
	},
	) bool {
		return n.Path == path
	})
}

func awaitDescribed(t *testing.T, n *harness.Node, what, device string, condition func(*cdiDevice) bool) *cdiDevice {
	t.Helper()
	var last *cdiDevice
	err := harness.Await(soon(t), 10*time.Millisecond, what, func() (bool, error) {
		last = described(t, n, device)
		return condition(last), nil
	})
	if err != nil {
		t.Fatalf("%v: %+v", err, last)
	}
	return last
}

// The CDI file of a grant describes one free GPU or instance of it, never one that another lease has. A container in the
// slice of a grant is a lease.
func TestContainers(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	mount := ""
	if os.Geteuid() == 0 {
		mount = unified(t)
	}
	n := start(t, quick)
	if s := status(t, n); mount == "" || !strings.HasPrefix(s.Node.Adapter, "cgroupfs") {
		t.Skipf("needs the cgroupfs adapter, and this host has %s", s.Node.Adapter)
	}
	apply(t, n, shared)
	there := func(d *cdiDevice) bool { return d != nil }
	cut := awaitDescribed(t, n, "a MIG grant is not described", "red.cut", there)
	s := status(t, n)
	instance := ""
	for _, in := range s.GPUs[0].MIG.Instances {
		if in.Profile == "3g.20gb" {
			instance = in.UUIDs[0]
		}
	}
	if !slices.Contains(cut.Edit.Env, "CUDA_VISIBLE_DEVICES="+instance) ||
		slices.ContainsFunc(cut.Edit.Env, func(kv string) bool { return strings.HasPrefix(kv, "GPUSHARE_LEASE=") }) {
		t.Errorf("its environment is %v", cut.Edit.Env)
	}
	caps := 0
	for _, node := range cut.Edit.DeviceNodes {
		if _, err := os.Lstat(node.HostPath); err != nil {
			t.Errorf("node %s is not there: %v", node.Path, err)
		}
		if strings.HasPrefix(node.Path, "/dev/nvidia-caps/") {
			caps++
		}
	}
	if caps != 2 || !cut.has("/dev/nvidiactl") {
		t.Errorf("a MIG grant gets %+v", cut.Edit.DeviceNodes)
	}
	info, err := os.Stat(filepath.Join(n.Dir, "cdi", "gpushare-red.cut.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its file: %v, %v: it names tenants, so only root may read it", info, err)
	}

	// Without a change no file is written.
	count := func() uint64 {
		t.Helper()
		c, err := n.Client().Counters(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		return c["cdi.writes"]
	}
	before := count()
	for range 3 {
		if r := n.CLI(soon(t), "config", "reload"); r.Code != 0 {
			t.Fatal(r.Err)
		}
	}
	if after := count(); after != before || before == 0 {
		t.Errorf("%d writes, then %d without a change", before, after)
	}

	// An exclusive GPU in use by one tenant is not described for the other.
	job, _ := begin(t, n, "blue", "whole", "sleep", "60")
	awaitDescribed(t, n, "a GPU in use by blue is described for red", "red.whole", func(d *cdiDevice) bool { return d == nil })
	awaitDescribed(t, n, "the GPU of blue is not described for blue any more", "blue.whole", there)
	job.Kill()
	awaitDescribed(t, n, "the GPU is free, and is not described", "red.whole", there)

	// A container in the slice of the grant.
	r := n.CLI(soon(t), "env", "--cdi", "-t", "red", "--grant", "part")
	_, parent, ok := strings.Cut(r.Out, "--cgroup-parent=")
	parent, _, _ = strings.Cut(parent, " ")
	if r.Code != 0 || !ok || !strings.Contains(r.Out, "--device=gpushare.dev/gpu=red.part IMAGE") {
		t.Fatalf("env --cdi exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	dir := filepath.Join(mount, parent, "libpod-0123456789abcdef")
	for _, d := range []string{dir, dir + "-conmon"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := startOutside(t, n, 0, n.Burn("--gpu", s.GPUs[2].UUID, "--memory", "9GiB", "--hold")...)
	monitor := startOutside(t, n, 0, "sleep", "60")
	enter(t, dir+"-conmon", monitor.pid())
	enter(t, dir, p.pid())
	s = awaitStatus(t, n, "the container has no lease, or its memory does not count", func(s *api.Status) bool {
		return len(s.Leases) == 1 && s.Leases[0].GPUMemory != nil && s.Leases[0].GPUMemory.Stage == "over"
	})
	l := s.Leases[0]
	if l.Origin != api.OriginContainer || l.Grant != "part" || l.Tenant != "red" ||
		l.Isolation.Cgroup != parent+"/libpod-0123456789abcdef" ||
		!slices.Equal(l.Command, []string{"container 0123456789ab"}) {
		t.Errorf("the lease is %+v", l)
	}
	if r := n.CLI(soon(t), "lease", "release", l.ID); r.Code != api.ExitUsage {
		t.Errorf("releasing a container exits with %d: %s", r.Code, r.Err)
	}
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if again := leaseByID(status(t, n), l.ID); again == nil || again.Origin != api.OriginContainer {
		t.Errorf("the next daemon knows it as %+v", again)
	}
	events := follow(t, n)
	// A stop ends all its processes, because it is in a slice of gpushare.
	if r := n.CLI(soon(t), "lease", "stop", l.ID); r.Code != 0 {
		t.Fatalf("stop exits with %d: %s", r.Code, r.Err)
	}
	events.await(t, "lease.ended", l.ID)
	if p.living() || !monitor.living() {
		t.Errorf("after a stop the container runs: %v, its monitor: %v", p.living(), monitor.living())
	}

	reservedContainers(t, n, mount, parent)

	// A grant whose one lease is in use has no capacity for another container: a condition reports it.
	user, id := begin(t, n, "red", "whole", "sleep", "60")
	whole := filepath.Join(mount, filepath.Dir(parent), "whole.slice", "libpod-fedc")
	if err := os.Mkdir(whole, 0o755); err != nil {
		t.Fatal(err)
	}
	second := startOutside(t, n, 0, "sleep", "60")
	enter(t, whole, second.pid())
	s = awaitStatus(
		t, n, "no condition reports the container without a lease",
		func(s *api.Status) bool { return hasCondition(s, "container", "container fedc has no lease") },
	)
	if len(s.Leases) != 1 || s.Leases[0].ID != id {
		t.Errorf("the leases are %+v", s.Leases)
	}
	if !second.living() {
		t.Error("a container without a lease was stopped, and the spec says report")
	}
	for _, o := range []*outside{second, monitor} {
		if err := o.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-o.done
	}
	user.Kill()
	awaitStatus(
		t, n, "the condition stays after its end",
		func(s *api.Status) bool { return !hasCondition(s, "container", "") && len(s.Leases) == 0 },
	)

	apply(t, n, "version: v1\nnode: {enforce: on}\ngpus: [{select: {index: 2}, mode: timeslice}]\n"+
		"tenants: [{name: red, grants: [{name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}]}]\n")
	awaitDescribed(t, n, "a removed grant is still described", "blue.part", func(d *cdiDevice) bool { return d == nil })
	awaitDescribed(t, n, "a remaining grant is not described", "red.part", there)
}

// The device rules of a grant's slice apply to processes that root starts in it.
func TestContainerIsIsolated(t *testing.T) {
	t.Parallel()
	n := startWithDeviceNodes(t)
	r := n.CLI(soon(t), "env", "--cdi", "-t", "red", "--grant", "part", "--json")
	var use api.ContainerUse
	if err := json.Unmarshal([]byte(r.Out), &use); err != nil || r.Code != 0 {
		t.Fatalf("env --cdi exits with %d: %v: %s%s", r.Code, err, r.Out, r.Err)
	}
	dir := filepath.Join(unified(t), use.CgroupParent, "libpod-1234")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx := soon(t)
	out, err := exec.CommandContext(ctx, "sh", "-c", "echo $$ >"+dir+"/cgroup.procs; "+fmt.Sprintf(openNodes, n.Root())).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		got = append(got, strings.TrimPrefix(strings.TrimSpace(line), "open "))
	}
	slices.Sort(got)
	if want := []string{"nvidia-uvm", "nvidia2", "nvidiactl"}; !slices.Equal(got, want) {
		t.Errorf("it opens %v, want %v", got, want)
	}
}

// reservedContainers checks devices of one container: each has a place of its own, and only the container that was started with
// it becomes its lease.
func reservedContainers(t *testing.T, n *harness.Node, mount, parent string) {
	t.Helper()
	reserve := func(tenant, grant string) (*api.ContainerUse, string) {
		t.Helper()
		r := n.CLI(soon(t), "env", "--cdi", "--reserve", "-t", tenant, "--grant", grant, "--json")
		u := new(api.ContainerUse)
		if r.Code == 0 {
			if err := json.Unmarshal([]byte(r.Out), u); err != nil {
				t.Fatal(err)
			}
		}
		return u, r.Err
	}
	whole, why := reserve("red", "whole")
	d := described(t, n, whole.Lease)
	if d == nil || !slices.Contains(d.Edit.Env, "GPUSHARE_LEASE="+whole.Lease) || whole.Device != "gpushare.dev/gpu="+whole.Lease ||
		whole.Until == nil {
		t.Fatalf("its device is %+v, described as %+v (%s)", whole, d, why)
	}
	if u, why := reserve("blue", "whole"); u.Lease != "" || !strings.Contains(why, "cannot place a lease of blue now") {
		t.Errorf("the same GPU is reserved again as %+v: %s", u, why)
	}
	if other := described(t, n, "blue.whole"); other != nil {
		t.Errorf("and blue has a device for it: %+v", other)
	}
	if r := n.CLI(soon(t), "lease", "stop", whole.Lease); r.Code != 0 {
		t.Errorf("the end of the wait exits with %d: %s", r.Code, r.Err)
	}
	awaitDescribed(t, n, "a device of a lease that ended remains", whole.Lease, func(d *cdiDevice) bool { return d == nil })

	first, _ := reserve("red", "part")
	second, _ := reserve("red", "part")
	if first.Lease == "" || first.Lease == second.Lease {
		t.Fatalf("%+v and %+v", first, second)
	}
	var started []*outside
	begin := func(name, id string) {
		dir := filepath.Join(mount, parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		p := startOutside(t, n, 0, "env", "GPUSHARE_LEASE="+id, "sleep", "60")
		enter(t, dir, p.pid())
		started = append(started, p)
	}
	begin("libpod-aaaa", second.Lease)
	awaitStatus(t, n, "the container is not the lease of its device", func(s *api.Status) bool {
		l := leaseByID(s, second.Lease)
		return l != nil && l.State == api.LeaseRunning && slices.Equal(l.Command, []string{"container aaaa"}) &&
			l.Isolation.Cgroup == parent+"/libpod-aaaa"
	})
	awaitDescribed(t, n, "a device is there after its start", second.Lease, func(d *cdiDevice) bool { return d == nil })
	begin("libpod-bbbb", second.Lease)
	s := awaitStatus(t, n, "a second container with the same device is not reported", func(s *api.Status) bool {
		return hasCondition(s, "container", "container bbbb has no lease: it was started with the device of lease "+second.Lease)
	})
	if l := leaseByID(s, first.Lease); l == nil || l.State != api.LeasePlaced || described(t, n, first.Lease) == nil {
		t.Errorf("the other one is %+v", l)
	}
	if r := n.CLI(soon(t), "lease", "stop", first.Lease); r.Code != 0 {
		t.Error(r.Err)
	}
	for _, p := range started {
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-p.done
	}
	awaitStatus(t, n, "its leases remain", func(s *api.Status) bool { return len(s.Leases) == 0 && !hasCondition(s, "container", "") })
}
