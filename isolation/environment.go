package isolation

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// Lease is the input for the environment of a lease's processes.
type Lease struct {
	ID      string
	Tenant  string
	Grant   string
	Devices []gpu.UUID // GPUs, or the MIG devices of an instance
	// Timesliced: the lease's GPU is time-sliced, so its processes may be frozen.
	Timesliced bool
	// MPS are the variables of a client of the MPS control daemon (CUDA_MPS_PIPE_DIRECTORY and limits); nil without MPS.
	MPS map[string]string
}

// LaunchQueueScale reduces the queue of submitted kernels of a process to a quarter. The backlog of a frozen process runs
// until it is empty, so the size of the queue bounds the wait of the next lease. It must be set before CUDA starts.
const LaunchQueueScale = "0.25x"

// mpsNames are the variables that select an MPS control daemon and the limits of its client (NVIDIA's MPS guide, section on
// environment variables).
func mpsNames() []string {
	return []string{
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
		"CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY",
	}
}

// LeaseVariable is the environment variable with the id of the lease of a process.
const LeaseVariable = "GPUSHARE_LEASE"

// Environment returns the environment of a lease's processes: the variables to set and those to remove. It lets programs
// find their devices. It isolates nothing: that is done by the device rules.
//
// CUDA_VISIBLE_DEVICES contains UUIDs, so that a changed order of enumeration selects no other GPU. Inherited MPS
// variables are removed, because they would select another control daemon than the lease's. NVIDIA_VISIBLE_DEVICES,
// which container runtimes read, is removed as well: an inherited "all" requests more than the device rules allow, and a
// container in a lease gets its devices from CDI.
func Environment(l Lease) (set map[string]string, unset []string) {
	ids := make([]string, len(l.Devices))
	for i, id := range l.Devices {
		ids[i] = string(id)
	}
	set = map[string]string{
		"CUDA_DEVICE_ORDER":    "PCI_BUS_ID",
		"CUDA_VISIBLE_DEVICES": strings.Join(ids, ","),
		"GPUSHARE_GRANT":       l.Grant,
		LeaseVariable:          l.ID,
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
