package state

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/store"
)

// The mode from before stays recorded until the GPU has it and no boot changes it.
func TestTheModeFromBeforeIsRecordedWhileAnotherIsPending(t *testing.T) {
	off, on := false, true
	for _, c := range []struct {
		name             string
		was              *bool
		current, pending bool
		kept             bool
	}{
		{"off, and off before", &off, false, false, false},
		{"on is pending, and off before", &off, false, true, true},
		{"off is pending, and off before", &off, true, false, true},
		{"off is pending, and on before", &on, true, false, true},
		{"on, and on before", &on, true, true, false},
		{"never changed", nil, false, true, false},
	} {
		g := observetest.Device(c.current)
		g.MIG.Pending = c.pending
		s := &store.State{OriginalModes: map[gpu.UUID]store.GPUModes{g.Identity.UUID: {MIG: c.was}}}
		RecordUnmanaged(s, &Desired{Unmanaged: &api.Unmanaged{All: true}}, &observe.Node{GPUs: []observe.GPU{g}}, nil, false)
		if _, kept := s.OriginalModes[g.Identity.UUID]; kept != c.kept {
			t.Errorf("%s: it is recorded: %v", c.name, kept)
		}
	}
}
