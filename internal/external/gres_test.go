package external

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGres(t *testing.T) {
	for _, c := range []struct {
		name     string
		text     string
		want     Gres
		includes []string
	}{
		{name: "empty"},
		{name: "only comments", text: "# Name=gpu File=/dev/nvidia0\n\n   # AutoDetect=nvml\n"},
		{name: "one", text: "Name=gpu File=/dev/nvidia0\n", want: Gres{Minors: []int{0}, Settings: []string{"File=/dev/nvidia0"}}},
		{name: "a range with a comment", text: "Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-15 # the first socket", want: Gres{Minors: []int{0, 1, 2, 3}, Settings: []string{"File=/dev/nvidia[0-3]"}}},
		{name: "ranges and single ones", text: "NAME=GPU FILE=/dev/nvidia[0,2-3],/dev/nvidia7", want: Gres{Minors: []int{0, 2, 3, 7}, Settings: []string{"File=/dev/nvidia[0,2-3],/dev/nvidia7"}}},
		{name: "several lines, one twice", text: "Name=gpu File=/dev/nvidia1\r\nName=gpu File=/dev/nvidia0\r\nName=shard Count=4 File=/dev/nvidia0\r\n", want: Gres{Minors: []int{0, 1}, Settings: []string{"File=/dev/nvidia1", "File=/dev/nvidia0", "File=/dev/nvidia0"}}},
		{name: "found by the driver", text: "AutoDetect=nvml\n", want: Gres{Auto: true, Settings: []string{"AutoDetect=nvml"}}},
		{name: "found without NVML", text: "autodetect=nvidia\n", want: Gres{Auto: true, Settings: []string{"AutoDetect=nvidia"}}},
		{name: "not found", text: "AutoDetect=off\n"},
		{name: "another vendor's", text: "AutoDetect=rsmi\nName=gpu File=/dev/dri/renderD128\n"},
		{name: "other resources", text: "Name=nic File=/dev/nvidia0\nName=bandwidth Count=20G\n"},
		{name: "MIG", text: "Name=gpu Type=1g.5gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22", want: Gres{Minors: []int{0}, Settings: []string{"MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22"}}},
		{name: "the control device is no GPU", text: "Name=gpu File=/dev/nvidiactl\n"},
		{name: "this node", text: "NodeName=lab[1-4] Name=gpu File=/dev/nvidia0\nNodeName=lab[5-9] Name=gpu File=/dev/nvidia1\n", want: Gres{Minors: []int{0}, Settings: []string{"File=/dev/nvidia0"}}},
		{name: "this node, found by the driver", text: "NodeName=lab2,lab3 AutoDetect=nvml Name=gpu Type=a100\n", want: Gres{Auto: true, Settings: []string{"AutoDetect=nvml"}}},
		{name: "other nodes", text: "NodeName=big[01-10] AutoDetect=nvml\nNodeName=lab02 Name=gpu File=/dev/nvidia0\n"},
		{name: "a continued line", text: "NodeName=lab2 Name=gpu \\\n  File=/dev/nvidia[0-1] \\\n  Cores=0-7\n", want: Gres{Minors: []int{0, 1}, Settings: []string{"File=/dev/nvidia[0-1]"}}},
		{name: "quoted", text: "Name=gpu File=\"/dev/nvidia4\"", want: Gres{Minors: []int{4}, Settings: []string{"File=/dev/nvidia4"}}},
		{name: "included", text: "include /etc/slurm/gres.d/lab.conf\nName=gpu\n", includes: []string{"/etc/slurm/gres.d/lab.conf"}},
		{name: "half a range", text: "Name=gpu File=/dev/nvidia[0-\nName=gpu File=/dev/nvidia[3-1]\nName=gpu File=/dev/nvidia[x]\n"},
		{name: "a range without end", text: "Name=gpu File=/dev/nvidia[0-99999999]\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, includes := parseGres(c.text, "lab2")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.includes, includes); diff != "" {
				t.Errorf("includes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExpandHosts(t *testing.T) {
	for list, want := range map[string][]string{
		"":                     nil,
		"a":                    {"a"},
		"a,b":                  {"a", "b"},
		"node[08-11]":          {"node08", "node09", "node10", "node11"},
		"r[1-2]n[1,3]":         {"r1n1", "r1n3", "r2n1", "r2n3"},
		"x[1-2]-ib,y":          {"x1-ib", "x2-ib", "y"},
		"x[1-99999]y[1-99999]": nil,
		"x[1":                  nil,
	} {
		if diff := cmp.Diff(want, expandHosts(list)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", list, diff)
		}
	}
	if !containsHost("ALL", "anybody") || containsHost("a[1-3]", "a4") || !containsHost("a[1-3]", "a3") {
		t.Error("a host is found where it is not, or not where it is")
	}
}

func FuzzGres(f *testing.F) {
	f.Add("NodeName=lab[1-4] Name=gpu File=/dev/nvidia[0,2-3]\\\n AutoDetect=nvml", "lab2")
	f.Fuzz(func(t *testing.T, text, node string) {
		g, _ := parseGres(text, node)
		for i, m := range g.Minors {
			if m < 0 || i > 0 && m <= g.Minors[i-1] {
				t.Errorf("minors %v", g.Minors)
			}
		}
	})
}
