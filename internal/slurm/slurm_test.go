package slurm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/golden"
)

// node is that on which the files of testdata are from Slurm: one GPU is partitioned, one is exclusive, two are shared.
func node() *api.Status {
	h100 := func(index int, mode string) api.GPUStatus {
		d := []string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"}[index]
		return api.GPUStatus{
			Index:      index,
			UUID:       "GPU-" + d,
			Model:      "NVIDIA H100 80GB HBM3",
			Mode:       mode,
			State:      "ok",
			DeviceNode: d,
			Grantable:  79<<30 + 1<<29,
		}
	}
	instance := func(profile, gi, ci string) api.InstanceStatus {
		const caps = "/dev/nvidia-caps/nvidia-cap"
		return api.InstanceStatus{
			Profile:     profile,
			UUIDs:       []string{"MIG-" + gi},
			DeviceNodes: []string{"/dev/nvidia0", caps + gi, caps + ci},
		}
	}
	s := &api.Status{Node: api.NodeStatus{Host: "node1.example.org"}}
	s.GPUs = []api.GPUStatus{h100(0, api.ModeMIG), h100(1, api.ModeTimeslice), h100(2, api.ModeExclusive), h100(3, api.ModeMPS)}
	s.GPUs[0].Grantable, s.GPUs[2].Grantable = 0, 0
	s.GPUs[0].MIG = &api.MIGStatus{Enabled: true, Instances: []api.InstanceStatus{
		instance("3g.40gb", "21", "22"), instance("2g.20gb", "30", "31"), instance("1g.10gb+me", "84", "85"),
	}}
	return s
}

// changed is a node that a test changes.
func changed(f func(s *api.Status)) *api.Status {
	s := node()
	f(s)
	return s
}

func TestGres(t *testing.T) {
	t.Parallel()
	split := changed(func(s *api.Status) {
		in := &s.GPUs[0].MIG.Instances[0]
		in.Compute = []api.ComputeStatus{
			{
				Profile:     "1c.3g.40gb",
				DeviceNodes: []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"},
			},
			{
				Profile:     "1c.3g.40gb",
				DeviceNodes: []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap23"},
			},
		}
		in.DeviceNodes = nil
	})
	unknown := changed(func(s *api.Status) {
		s.GPUs[0].MIG.Dynamic = true
		s.GPUs[1].DeviceNode, s.GPUs[1].State, s.GPUs[1].Reason = "", "lost", "GPU 1 is lost"
		s.GPUs[3].Grantable = 0
	})
	empty := changed(func(s *api.Status) { s.GPUs[0].MIG.Instances = nil })
	orphan := changed(func(s *api.Status) { s.GPUs[0].MIG.Instances[1].DeviceNodes = nil })
	for name, c := range map[string]struct {
		s    *api.Status
		only []string
	}{
		"gres": {node(), nil}, "gres-split": {split, nil}, "gres-unknown": {unknown, nil}, "gres-empty": {empty, nil}, "gres-orphan": {orphan, nil},
		"gres-only": {node(), []string{"GPU-/dev/nvidia0", "GPU-/dev/nvidia3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := Of(c.s, "node1", c.only)
			golden.File(t, filepath.Join("testdata", name+".conf"), g.Text())
		})
	}
}

func TestTypeOf(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{
		"NVIDIA H100 80GB HBM3":     "h100",
		"NVIDIA A100-SXM4-40GB":     "a100",
		"NVIDIA A30":                "a30",
		"Tesla V100-SXM2-16GB":      "v100",
		"NVIDIA RTX PRO 6000":       "rtx_pro_6000",
		"NVIDIA GeForce RTX 4090":   "geforce_rtx_4090",
		"NVIDIA":                    "gpu",
		"NVIDIA GH200 480GB":        "gh200",
		"NVIDIA Graphics Device":    "graphics_device",
		"NVIDIA B200":               "b200",
		"NVIDIA H200 NVL (Rev, \n)": "h200",
	} {
		if got := TypeOf(model); got != want {
			t.Errorf("%q has type %q, want %q", model, got, want)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What Slurm 24.11.5 says with the lines of testdata/gres.conf is what they should become.
func TestSlurmKnowsTheLines(t *testing.T) {
	t.Parallel()
	r := ParseReport(read(t, "slurmd-G-24.11-shared.txt"))
	n, ok := ParseNode(read(t, "node-24.11-idle.txt"))
	want := Of(node(), "node1", nil)
	if len(r.Known) != 12 || len(r.Problems) != 0 || len(r.Surplus) != 0 || !ok || n.Version != "24.11.5" {
		t.Errorf("read as %+v, %+v", r, n)
	}
	if diff := Compare(&want, &r, &n); len(diff) != 0 {
		t.Errorf("they differ: %+v", diff)
	}
}

// Slurm 22.05.8 says the same in other words, and takes the files of an instance apart where there are shards too.
func TestSlurmSplitsInstances(t *testing.T) {
	t.Parallel()
	r := ParseReport(read(t, "slurmd-G-22.05-split.txt"))
	s := node()
	s.GPUs[0].MIG.Instances = s.GPUs[0].MIG.Instances[:2] // It does not know the type of the third.
	want := Of(s, "node1", nil)
	var about []string
	for _, d := range Compare(&want, &r, nil) {
		about = append(about, d.Message)
		if strings.HasPrefix(d.Message, "slurmd takes each file") && !strings.Contains(d.Remedy, "GresTypes=gpu)") {
			t.Errorf("the remedy is %q: without a line of shards it does so too", d.Remedy)
		}
	}
	if len(r.Known) != 24 || len(about) < 2 ||
		about[0] != "slurmd takes each file of instance 3g.40gb of GPU 0 (/dev/nvidia-caps/nvidia-cap22) for a GPU" ||
		!strings.HasPrefix(about[1], "slurmd takes each file of instance 2g.20gb of GPU 0") {
		t.Errorf("%d lines are read, and they differ: %q", len(r.Known), about)
	}
	for _, gpu := range []string{"GPU 1", "GPU 2", "GPU 3"} {
		if strings.Contains(strings.Join(about, "\n"), gpu) {
			t.Errorf("%s differs: %q", gpu, about)
		}
	}
}

// What slurmd says of the processors of a node is no difference of its GPUs.
func TestErrorsOfProcessorsAreNoProblems(t *testing.T) {
	t.Parallel()
	r := ParseReport(
		"slurmd: error: Node configuration differs from hardware: CPUs=8:16(hw)\nslurmd: error: Waiting for gres.conf file /dev/nvidia9\n",
	)
	if len(r.Problems) != 1 || r.Problems[0] != "Waiting for gres.conf file /dev/nvidia9" {
		t.Errorf("its problems are %q", r.Problems)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	const good, idle = "slurmd-G-24.11-shared.txt", "node-24.11-idle.txt"
	for _, c := range []struct {
		name             string
		s                *api.Status
		report, node     string
		says, remedySays []string // of each difference
	}{
		{
			"an instance more", changed(func(s *api.Status) {
				in := s.GPUs[0].MIG.Instances[0]
				in.DeviceNodes = []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap39", "/dev/nvidia-caps/nvidia-cap40"}
				s.GPUs[0].MIG.Instances = append(s.GPUs[0].MIG.Instances, in)
			}), good, idle,
			[]string{"slurmd does not know instance 3g.40gb of GPU 0 (/dev/nvidia-caps/nvidia-cap40): with ConstrainDevices too it is open to every job"},
			[]string{"MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap39,/dev/nvidia-caps/nvidia-cap40; slurm.conf: Gres=gpu:3g.40gb:2,"},
		},
		{
			"an instance less", changed(func(s *api.Status) { s.GPUs[0].MIG.Instances = s.GPUs[0].MIG.Instances[:2] }), good, idle,
			[]string{"slurmd knows gpu:1g.10gb+me of /dev/nvidia0,/dev/nvidia-caps/nvidia-cap84,/dev/nvidia-caps/nvidia-cap85, and gpushare has no such"},
			[]string{"'gpushare slurm gres --node node1'"},
		},
		{
			"a GPU more", changed(func(s *api.Status) {
				s.GPUs = append(s.GPUs, api.GPUStatus{Index: 4, Model: "NVIDIA A30", DeviceNode: "/dev/nvidia4", Mode: api.ModeUnmanaged})
			}), good, idle,
			[]string{"slurmd does not know GPU 4 (/dev/nvidia4): with ConstrainDevices too it is open to every job"},
			[]string{"gres.conf: NodeName=node1 Name=gpu Type=a30 File=/dev/nvidia4; slurm.conf: Gres="},
		},
		{
			"partitioned since", changed(func(s *api.Status) { s.GPUs[2].MIG, s.GPUs[2].Mode = s.GPUs[0].MIG, api.ModeMIG; moveTo(&s.GPUs[2]) }), good, idle,
			[]string{"GPU 2 is partitioned, and slurmd gives it whole", "GPU 2 is partitioned", "GPU 2 is partitioned"},
			[]string{"MultipleFiles=/dev/nvidia2", "", ""},
		},
		{
			"less memory for grants", changed(func(s *api.Status) { s.GPUs[1].Grantable = 40 << 30 }), good, idle,
			[]string{"GPU 1 (/dev/nvidia1) has 79 shards of 1 GiB, and its grants may have 40 GiB: the shards do not hold"},
			[]string{"Name=shard Type=h100-shared Count=40 File=/dev/nvidia1"},
		},
		{
			"not shared any more", changed(func(s *api.Status) { s.GPUs[1].Mode = api.ModeExclusive }), good, idle,
			[]string{"GPU 1 (/dev/nvidia1) has 79 shards, and gpushare does not share it"},
			[]string{"Name=shard"},
		},
		{
			"shared since", changed(func(s *api.Status) { s.GPUs[2].Mode, s.GPUs[2].Grantable = api.ModeTimeslice, 79<<30 }), good, idle,
			[]string{"GPU 2 (/dev/nvidia2) is shared, and slurmd has no shards of it: each job gets it whole"},
			[]string{"Count=79 File=/dev/nvidia2"},
		},
		{
			"a type that is not configured", node(), good, "node-24.11-inval-type.txt",
			[]string{"slurmctld refuses what slurmd of node1 reports (INVAL): gres/shard type (3g.40gb) reported but not configured"},
			[]string{"'scontrol update nodename=node1 state=resume': it stays drained until then"},
		},
		{
			"drained", node(), good, "node-24.11-drained.txt",
			[]string{"node1 is drained: gpushare: layout"},
			[]string{"'scontrol update nodename=node1 state=resume'"},
		},
		{
			"a device that is not there", node(), "slurmd-G-24.11-nodevice.txt", idle,
			[]string{"slurmd reports: Waiting for gres.conf file /dev/nvidia-caps/nvidia-cap77", "slurmd reports: can't stat gres.conf file"},
			[]string{"", ""},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want, have := Of(c.s, "node1", nil), ParseReport(read(t, c.report))
			n, ok := ParseNode(read(t, c.node))
			if !ok {
				t.Fatal("the node is not read")
			}
			got := Compare(&want, &have, &n)
			for i := range max(len(got), len(c.says)) {
				if i >= len(got) || i >= len(c.says) || !strings.Contains(got[i].Message, c.says[i]) ||
					!strings.Contains(got[i].Remedy, c.remedySays[i]) {
					t.Fatalf("difference %d of %+v, want %q", i, got, c.says)
				}
			}
		})
	}
}

// moveTo gives the instances of another GPU the node of this one.
func moveTo(g *api.GPUStatus) {
	mig := *g.MIG
	mig.Instances = slices.Clone(mig.Instances)
	for i := range mig.Instances {
		mig.Instances[i].DeviceNodes = append([]string{g.DeviceNode}, mig.Instances[i].DeviceNodes[1:]...)
	}
	g.MIG = &mig
}

// A GPU that slurm.conf does not count is one that slurmd ignores, and so is one that gres.conf lacks.
func TestCompareLackingGPU(t *testing.T) {
	t.Parallel()
	r := ParseReport(read(t, "slurmd-G-24.11-lacks.txt"))
	want := []string{`SHARING configuration lacks "File" specification`}
	if diff := cmp.Diff(want, r.Problems); diff != "" {
		t.Error(diff)
	}
	s := ParseReport(
		"slurmd: warning: A line in gres.conf for GRES gpu:h100 has 1 more configured than expected in slurm.conf. Ignoring extra GRES.\n",
	)
	if !slices.Equal(s.Surplus, []string{"gpu:h100"}) {
		t.Errorf("more than slurm.conf has: %q", s.Surplus)
	}
	g := Of(node(), "node1", nil)
	if got := Compare(&g, &s, nil); len(got) != 1 || !strings.Contains(got[0].Message, "slurm.conf has fewer gpu:h100 than gres.conf") {
		t.Errorf("%+v", got)
	}
}

func TestNodeName(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{"node1": true, "gpu-01.a_b": true, "": false, "-n": false, "a b": false, "n[1-2]": false, "a\n": false} {
		if NodeName(name) != valid {
			t.Errorf("%q", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"slurmd-G-24.11-shared.txt", "node-24.11-inval-count.txt"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := ParseReport(text)
		n, ok := ParseNode(text)
		if ok && n.Name == "" {
			t.Error("a node without a name")
		}
		g := Of(node(), "node1", nil)
		Compare(&g, &r, &n)
	})
}
