package isolation

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

func TestPodmanOptions(t *testing.T) {
	inLease := func(change func(*Container)) Container {
		c := container("/")
		c.Device = ""
		change(&c)
		return c
	}
	whole := []string{
		"--cgroups=disabled",
		"--device=/dev/nvidiactl:/dev/nvidiactl:rw",
		"--device=/dev/nvidia-caps/nvidia-cap12:/dev/nvidia-caps/nvidia-cap12:r",
		"--volume=/usr/lib64/libcuda.so.580.95.05:/usr/lib64/libcuda.so.580.95.05:ro",
		"--volume=/usr/lib64/libcuda.so.580.95.05:/usr/lib64/libcuda.so.1:ro",
		"--volume=/usr/lib64/libcuda.so.580.95.05:/usr/local/nvidia/lib64/libcuda.so.1:ro",
		"--volume=/usr/bin/nvidia-smi:/usr/bin/nvidia-smi:ro",
		"--env=CUDA_VISIBLE_DEVICES=MIG-1",
		"--env=GPUSHARE_TENANT=vision-1",
		"--env=NVIDIA_VISIBLE_DEVICES=void",
	}
	elsewhere := slices.Clone(whole)
	for i, o := range elsewhere {
		for _, of := range []string{"--device=/dev", "--volume=/usr"} {
			if rest, ok := strings.CutPrefix(o, of); ok {
				option, path, _ := strings.Cut(of, "=")
				elsewhere[i] = option + "=/srv/node" + path + rest
			}
		}
	}
	for name, c := range map[string]struct {
		change  func(*Container)
		options []string
		err     string
	}{
		"as CDI":      {func(*Container) {}, whole, ""},
		"a host root": {func(c *Container) { c.HostRoot = "/srv/node" }, elsewhere, ""},
		"the vendor's edits need hooks": {func(c *Container) {
			c.Vendor = &Vendor{Mounts: []*specs.Mount{{HostPath: "/a", ContainerPath: "/a"}}, Hooks: []*specs.Hook{{Path: "/b"}}}
		}, whole, ""},
		"a client of MPS": {func(c *Container) {
			c.Rules, c.Libraries = nil, nil
			c.Environment = map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare/mps/gpu-1/t", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=16384M"}
		}, []string{
			"--cgroups=disabled", "--ipc=host", "--volume=/run/gpushare/mps/gpu-1/t:/run/gpushare/mps/gpu-1/t",
			"--env=CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=16384M", "--env=CUDA_MPS_PIPE_DIRECTORY=/run/gpushare/mps/gpu-1/t", "--env=NVIDIA_VISIBLE_DEVICES=void",
		}, ""},
		"a space":     {func(c *Container) { c.HostRoot = "/srv/my node" }, nil, "a shell would not pass on"},
		"a glob":      {func(c *Container) { c.Environment["X"] = "a*" }, nil, "a shell would not pass on"},
		"a semicolon": {func(c *Container) { c.Libraries[0].Path = "/usr/lib;x" }, nil, "a shell would not pass on"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := PodmanOptions(inLease(c.change))
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if d := cmp.Diff(c.options, got); d != "" {
				t.Error(d)
			}
		})
	}
}
