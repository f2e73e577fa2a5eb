package mps

import "fmt"

// Limits are the limits of one lease. The driver enforces them for each process separately.
type Limits struct {
	Threads float64 // percent of the GPU's threads, above 0 up to 100; 0 for all
	Memory  uint64  // bytes, whole MiB; 0 for none
	Total   uint64  // the GPU's memory in bytes, a larger limit is refused; 0 when it is not known
}

// Environment returns the variables, as NAME=value, with which a lease's processes join MPS on a device through a directory. A process
// can change these limits up to the control daemon's defaults, so where that matters the default must be the limit.
func (lim Limits) Environment(d Device, directory string) ([]string, error) {
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + directory}
	if err := checkThreads(lim.Threads); err != nil {
		return nil, fmt.Errorf("cannot join MPS on %s: %w", d, err)
	}
	if lim.Threads > 0 {
		env = append(env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+percentText(lim.Threads))
	}
	if lim.Memory > 0 {
		limit, err := FormatMemory(lim.Memory, lim.Total)
		if err != nil {
			return nil, fmt.Errorf("cannot join MPS on %s: %w", d, err)
		}
		// By ordinal: drivers up to 555 ignore a UUID here, and an unknown device removes every limit.
		env = append(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0="+limit)
	}
	return env, nil
}
