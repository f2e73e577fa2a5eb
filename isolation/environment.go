package isolation

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// Lease is what the environment of a lease's processes is made from.
type Lease struct {
	ID      string
	Tenant  string
	Grant   string
	Devices []gpu.UUID // GPUs, or the MIG devices of an instance
	// Timesliced: the lease's GPU is time-sliced, so its processes may be frozen.
	Timesliced bool
	// MPS is what the control daemon's clients need (CUDA_MPS_PIPE_DIRECTORY and limits); nil when not under MPS.
	MPS map[string]string
}

// LaunchQueueScale makes the queue of kernels that a process may have submitted a quarter as deep. A frozen process's
// queue runs on until it is empty, so this is what bounds how long another must wait for its turn. It must be set before
// CUDA starts.
const LaunchQueueScale = "0.25x"

// mpsNames are the variables by which a process finds an MPS control daemon and by which it is limited there (NVIDIA's
// MPS guide, appendix of environment variables).
func mpsNames() []string {
	return []string{
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
		"CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY",
	}
}

// Environment is what a lease's processes get: the variables to set, and those to take out. It is for finding one's
// devices, not for keeping others': that is what the device rules are for.
//
// CUDA_VISIBLE_DEVICES names UUIDs, so that a changed order of enumeration gives nobody another's GPU. MPS variables that
// were inherited are taken out, for they would lead to a control daemon that is not the lease's. NVIDIA_VISIBLE_DEVICES,
// which container runtimes read, is taken out as well: an inherited "all" asks for more than the walls allow, and a
// container in a lease gets its devices in another way.
func Environment(l Lease) (set map[string]string, unset []string) {
	ids := make([]string, len(l.Devices))
	for i, id := range l.Devices {
		ids[i] = string(id)
	}
	set = map[string]string{
		"CUDA_DEVICE_ORDER":    "PCI_BUS_ID",
		"CUDA_VISIBLE_DEVICES": strings.Join(ids, ","),
		"GPUSHARE_GRANT":       l.Grant,
		"GPUSHARE_LEASE":       l.ID,
		"GPUSHARE_TENANT":      l.Tenant,
	}
	if l.Timesliced {
		set["CUDA_SCALE_LAUNCH_QUEUES"] = LaunchQueueScale
	}
	maps.Copy(set, l.MPS)
	for _, name := range append(mpsNames(), "NVIDIA_VISIBLE_DEVICES") {
		if _, ok := set[name]; !ok {
			unset = append(unset, name)
		}
	}
	slices.Sort(unset)
	return set, unset
}
