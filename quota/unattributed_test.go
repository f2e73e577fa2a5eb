package quota

import (
	"testing"

	"github.com/gpushare/gpushare/gpu"
)

func TestUnattributed(t *testing.T) {
	p := func(pid int, gib float64) gpu.Process {
		b := uint64(gib * gibi)
		return gpu.Process{PID: pid, Memory: &b}
	}
	memory := gpu.Memory{Total: 80 * gibi, Reserved: gibi / 2, Used: 20 * gibi}
	for _, tc := range []struct {
		name      string
		memory    gpu.Memory
		processes []gpu.Process
		mig       bool
		want      float64 // GiB; -1: unknown
	}{
		{"all is in processes", memory, []gpu.Process{p(1, 12), p(2, 8)}, false, 0},
		{"what a driver uses itself", memory, []gpu.Process{p(1, 19.8)}, false, 0},
		{"managed memory", memory, []gpu.Process{p(1, 0.5)}, false, 19.5},
		{"no process", memory, nil, false, 20},
		{"a process in two lists", memory, []gpu.Process{p(1, 18), p(1, 18)}, false, 2},
		{"a list that is newer than the total", memory, []gpu.Process{p(1, 25)}, false, 0},
		{"the memory of a process is unknown", memory, []gpu.Process{p(1, 5), {PID: 2}}, false, -1},
		{"a partitioned GPU", memory, nil, true, -1},
		{"a driver that counts its reserved memory as used", gpu.Memory{Total: 80 * gibi, Used: 20 * gibi}, []gpu.Process{p(1, 19.2)}, false, 0},
		{"the same with managed memory", gpu.Memory{Total: 80 * gibi, Used: 20 * gibi}, []gpu.Process{p(1, 17)}, false, 3},
		{"a GPU that was not read", gpu.Memory{}, nil, false, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := Unattributed(&gpu.Snapshot{Memory: tc.memory, Processes: tc.processes, MIG: gpu.MIGState{Current: tc.mig}})
			if ok != (tc.want >= 0) || ok && got != uint64(tc.want*gibi) {
				t.Errorf("got %d, %v, want %v GiB", got, ok, tc.want)
			}
		})
	}
}

// What is in an instance is compared with the processes in it alone.
func TestUnattributedInAnInstance(t *testing.T) {
	p := func(pid int, gi uint32, gib float64) gpu.Process {
		b := uint64(gib * gibi)
		return gpu.Process{PID: pid, GI: &gi, Memory: &b}
	}
	in := gpu.Instance{ID: 2, Memory: gpu.Memory{Total: 20 * gibi, Used: 12 * gibi}}
	for _, tc := range []struct {
		name      string
		in        gpu.Instance
		processes []gpu.Process
		want      float64 // GiB; -1: unknown
	}{
		{"no process", in, nil, 12},
		{"a process in it", in, []gpu.Process{p(1, 2, 5)}, 7},
		{"all is in processes", in, []gpu.Process{p(1, 2, 8), p(3, 2, 3.5)}, 0},
		{"a process in another one", in, []gpu.Process{p(1, 1, 12)}, 12},
		{"a process in no known one", in, []gpu.Process{{PID: 1, Memory: new(uint64)}}, -1},
		{"the memory of a process is unknown", in, []gpu.Process{{PID: 1, GI: &in.ID}}, -1},
		{"an instance that was not read", gpu.Instance{ID: 2}, nil, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := UnattributedIn(&gpu.Snapshot{Processes: tc.processes, MIG: gpu.MIGState{Current: true}}, &tc.in)
			if ok != (tc.want >= 0) || ok && got != uint64(tc.want*gibi) {
				t.Errorf("got %d, %v, want %v GiB", got, ok, tc.want)
			}
		})
	}
}
