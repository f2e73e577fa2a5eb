package isolation

import (
	"fmt"
	"path/filepath"
	"regexp"
)

// pipeDirectory is the variable with the directory in which a client of MPS finds its control daemon.
const pipeDirectory = "CUDA_MPS_PIPE_DIRECTORY"

// plainWord matches what a shell passes on as one word with itself as its value, also without quotes.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9@%+=:,./_-]+$`)

// PodmanOptions returns the options with which rootless podman runs a container as part of the lease that it is started in. They
// have what the CDI spec has, whose file is for root alone.
//
// A container of a user would have a cgroup below the user's login. Without one of its own it stays in that of the lease, with
// the device rules and limits there. Podman mounts device nodes for a user, it creates none.
//
// The vendor's edits are not used: hooks give its libraries their names, and no option runs them.
//
// A client of MPS needs its control daemon's directory and the host's shared memory (NVIDIA/nvidia-docker issue 419; GKE's page
// on MPS requires hostIPC of a pod). Its user must be that of the lease, which root of a rootless container is.
func PodmanOptions(c Container) ([]string, error) {
	out := []string{"--cgroups=disabled"}
	for _, r := range c.Rules {
		out = append(out, fmt.Sprintf("--device=%s:%s:%s", filepath.Join("/", c.HostRoot, r.Name), r.Name, r.Access))
	}
	for _, m := range libraryMounts(&c) {
		out = append(out, fmt.Sprintf("--volume=%s:%s:ro", m.HostPath, m.ContainerPath))
	}
	if dir := c.Environment[pipeDirectory]; dir != "" {
		out = append(out, "--ipc=host", fmt.Sprintf("--volume=%s:%s", dir, dir))
	}
	for _, kv := range environ(c.Environment) {
		out = append(out, "--env="+kv)
	}
	for _, o := range out {
		if !plainWord.MatchString(o) {
			return nil, fmt.Errorf("a shell would not pass on %q as one word", o)
		}
	}
	return out, nil
}
