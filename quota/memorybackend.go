package quota

import "fmt"

// MemoryBackend is what enforces the GPU-memory limit of a grant for one lease.
type MemoryBackend string

// The backends, the strongest first.
const (
	BackendMIG    MemoryBackend = "mig"    // the instance has no more memory
	BackendDriver MemoryBackend = "driver" // the driver limits the cgroup of the lease: an allocation above the limit fails
	// BackendMPS: each process asks the MPS server for a limit of its own, by its environment. It is advisory, and no limit of
	// the grant.
	BackendMPS      MemoryBackend = "mps"
	BackendReactive MemoryBackend = "reactive" // the daemon samples it, and freezes or stops the lease
	BackendObserve  MemoryBackend = "observe"  // the daemon samples it, and only reports
)

// MemoryBackendInput is what the choice of a backend depends on, for one lease on one GPU.
type MemoryBackendInput struct {
	MIG       bool // the lease has a MIG instance
	Split     bool // of that, one compute instance
	Enforcing bool // the spec says enforce: on
	Driver    DriverLimit
	Others    int // further leases of the grant on the GPU
	// MPS: the lease's processes get a pinned memory limit from the MPS server of the GPU.
	MPS       bool
	Overuse   OverusePolicy
	CanFreeze bool // the lease can be frozen
}

// DriverLimit is the driver's limit of the lease's cgroup, as it was read back.
type DriverLimit struct {
	ReadBack bool // the limit of the cgroup is that of the grant
	// Together: the driver also limits all leases of the grant together, by the limit of the cgroup above them.
	Together bool
	Reason   string // why it was not read back
}

// MemoryChoice is the chosen backend.
type MemoryChoice struct {
	Backend MemoryBackend
	// Hard: the processes of the grant together cannot allocate more, except as managed memory.
	Hard bool
	// Enforced: something acts on the limit, if only after it was exceeded. What each client process is asked to keep is not
	// that.
	Enforced bool
	Reason   string // why this one, and why no stronger one
}

// Advisory reports whether nothing but the environment of the lease's processes asks for the limit.
func (c MemoryChoice) Advisory() bool { return c.Backend == BackendMPS && !c.Enforced }

// ChooseMemoryBackend returns the strongest backend that is active.
func ChooseMemoryBackend(in MemoryBackendInput) MemoryChoice {
	if in.MIG { // The hardware also limits on a node that only observes.
		if in.Split {
			return MemoryChoice{
				BackendMIG,
				true,
				true,
				"its MIG instance has no more memory; the leases on the other compute instances of it use the same memory",
			}
		}
		return MemoryChoice{BackendMIG, true, true, "its MIG instance has no more memory"}
	}
	if in.Driver.ReadBack && (in.Driver.Together || in.Others == 0) {
		return MemoryChoice{
			BackendDriver,
			true,
			true,
			"the driver refuses allocations above the limit (read back); managed memory is not limited",
		}
	}
	reactive := MemoryChoice{BackendObserve, false, false, "it is only sampled and reported"}
	switch {
	case !in.Enforcing:
		reactive.Reason += ": the spec says enforce: observe"
	case in.Overuse == OveruseKill:
		reactive = MemoryChoice{BackendReactive, false, true, "it is sampled, and a lease above it is stopped"}
	case in.Overuse == OveruseFreeze && in.CanFreeze:
		reactive = MemoryChoice{BackendReactive, false, true, "it is sampled, and a lease above it is frozen"}
	case in.Overuse == OveruseFreeze:
		reactive.Reason += ": the lease cannot be frozen"
	default:
		reactive.Reason += ": the spec says overuse: {gpu_memory: " + string(in.Overuse) + "}"
	}
	if in.Driver.ReadBack {
		return MemoryChoice{
			BackendDriver,
			false,
			true,
			fmt.Sprintf("the driver limits each of the grant's %d leases alone (read back); together %s", in.Others+1, reactive.Reason),
		}
	}
	if in.MPS && reactive.Enforced {
		reactive = MemoryChoice{
			BackendMPS,
			false,
			true,
			"of the grant " + reactive.Reason + "; advisory: each process asks the MPS server for its own limit, by its environment",
		}
	} else if in.MPS {
		reactive = MemoryChoice{
			BackendMPS,
			false,
			false,
			"advisory: each process asks the MPS server for its own limit, by its environment; of the grant " + reactive.Reason,
		}
	}
	if in.Driver.Reason != "" {
		reactive.Reason += "; no limit by the driver: " + in.Driver.Reason
	}
	return reactive
}
