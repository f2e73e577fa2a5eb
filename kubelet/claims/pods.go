package claims

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Cgroups finds the cgroups of pods below a mount of the v2 hierarchy.
type Cgroups struct{ Mount string }

// Cgroup tries the places where the kubelet puts a pod: with its driver systemd or cgroupfs, for each class of quality of service. It
// is below kubepods unless the kubelet has another root.
func (g Cgroups) Cgroup(pod types.UID) string {
	if strings.ContainsAny(string(pod), "/") || pod == "" {
		return ""
	}
	unit := strings.ReplaceAll(string(pod), "-", "_")
	for _, path := range []string{
		"/kubepods.slice/kubepods-pod" + unit + ".slice",
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice",
		"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + unit + ".slice",
		"/kubepods/pod" + string(pod),
		"/kubepods/burstable/pod" + string(pod),
		"/kubepods/besteffort/pod" + string(pod),
	} {
		if info, err := os.Stat(filepath.Join(g.Mount, path)); err == nil && info.IsDir() {
			return path
		}
	}
	return ""
}

// Exists reports whether there is a cgroup of that path below the mount.
func (g Cgroups) Exists(path string) bool {
	info, err := os.Stat(filepath.Join(g.Mount, path))
	return err == nil && info.IsDir()
}
