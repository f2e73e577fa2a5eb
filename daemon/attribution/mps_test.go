package attribution

import (
	"testing"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// TestServesMPS: a process with the name of an MPS server is not taken for one.
func TestServesMPS(t *testing.T) {
	t.Parallel()
	of := []*mps.State{{PID: 90}, {PID: 100, Servers: []int{102}}}
	for _, c := range []struct {
		name string
		m    []*mps.State
		p    procfs.Stat
		want bool
	}{
		{"listed by the control daemon", of, procfs.Stat{PID: 102, PPID: 1}, true},
		{"its child", of, procfs.Stat{PID: 103, PPID: 100}, true},
		{"it outlived its control daemon", []*mps.State{{Phase: mps.Restarting, Leftovers: []int{105}}}, procfs.Stat{PID: 105, PPID: 1}, true},
		{"only its name", of, procfs.Stat{PID: 104, PPID: 1, Name: "nvidia-cuda-mps"}, false},
		{"no MPS", nil, procfs.Stat{PID: 102}, false},
		{"a control daemon that does not run", []*mps.State{{}}, procfs.Stat{PID: 1, PPID: 0}, false},
	} {
		if got := ServesMPS(c.m, c.p); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
