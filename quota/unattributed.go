package quota

import "github.com/gpushare/gpushare/gpu"

const (
	// unattributedNoise is what a driver uses besides its processes. Drivers that do not report their reserved memory apart
	// count it as used: several hundred MiB on boards of 80 GiB.
	unattributedNoise     = 256 << 20
	unattributedNoReserve = 1 << 30
	// UnattributedLarge is the unattributed memory from which it is reported as a problem.
	UnattributedLarge = 1 << 30
)

// Unattributed is the used memory of a GPU that no process in the driver's list accounts for, in bytes; 0 when it is no more
// than a driver uses itself. ok is false when it is not known: on a partitioned GPU, and when the driver does not report the
// memory of a process. Managed memory, processes in other pid namespaces and memory that was not freed are seen in it.
func Unattributed(s *gpu.Snapshot) (bytes uint64, ok bool) {
	if s.MIG.Current || s.Memory.Total == 0 {
		return 0, false
	}
	return unattributed(&s.Memory, s.Processes)
}

// UnattributedIn is the same for one MIG instance. It is not known either where the driver does not report in which instance a process
// is.
func UnattributedIn(s *gpu.Snapshot, in *gpu.Instance) (bytes uint64, ok bool) {
	if in.Memory.Total == 0 {
		return 0, false
	}
	var inside []gpu.Process
	for _, p := range s.Processes {
		if p.GI == nil {
			return 0, false
		}
		if *p.GI == in.ID {
			inside = append(inside, p)
		}
	}
	return unattributed(&in.Memory, inside)
}

func unattributed(m *gpu.Memory, processes []gpu.Process) (bytes uint64, ok bool) {
	of := map[int]uint64{}
	for i := range processes {
		p := &processes[i]
		if p.Memory == nil {
			return 0, false
		}
		of[p.PID] = max(of[p.PID], *p.Memory) // A process may be in two of the driver's lists.
	}
	var sum uint64
	for _, b := range of {
		sum += b
	}
	noise := uint64(unattributedNoise)
	if m.Reserved == 0 {
		noise = unattributedNoReserve
	}
	if m.Used < sum+noise {
		return 0, true
	}
	return m.Used - sum, true
}
