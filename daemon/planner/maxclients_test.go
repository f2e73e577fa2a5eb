package planner

import (
	"testing"

	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/mps"
)

// An instance has the clients of a whole GPU in proportion to its compute slices, rounded down, and at least one.
func TestMaxClientsOfInstances(t *testing.T) {
	for _, c := range []struct {
		program mps.Release
		profile uint32
		want    int
	}{
		{mps.Release{Driver: "580.178.04", Branch: 580, CUDA: 13000}, 19, 6},
		{mps.Release{Driver: "580.178.04", Branch: 580, CUDA: 13000}, 14, 13},
		{mps.Release{Driver: "580.178.04", Branch: 580, CUDA: 13000}, 9, 20},
		{mps.Release{Driver: "580.178.04", Branch: 580, CUDA: 13000}, 5, 27},
		{mps.Release{Driver: "580.178.04", Branch: 580, CUDA: 13000}, 0, 48},
		{mps.Release{CUDA: 13040}, 19, 8},
		{mps.Release{CUDA: 13040}, 9, 25},
		{mps.Release{CUDA: 13040}, 0, 60},
	} {
		in := observetest.Instance(c.profile, 0)
		g := observetest.Device(true, in)
		if got := MaxClientsOf(&g, &in); got != 0 {
			t.Errorf("without MPS profile %d has %d", c.profile, got)
		}
		g.InstanceMPS = []*mps.State{{GPU: observetest.One, Instance: in.Placement, Phase: mps.Running, Program: c.program}}
		if got := MaxClientsOf(&g, &in); got != c.want {
			t.Errorf("profile %d with %s has %d clients, want %d", c.profile, c.program.Text(), got, c.want)
		}
	}
}
