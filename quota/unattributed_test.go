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
