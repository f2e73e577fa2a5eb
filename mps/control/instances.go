package control

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mps"
)

// ObserveInstances observes the control daemons of the MIG instances of one GPU, by placement: those that were started, also if
// their instance was removed, and any at the given placements.
func (s *Supervisor) ObserveInstances(ctx context.Context, id gpu.UUID, at []gpu.Placement) []*mps.State {
	devices := s.startedOn(id)
	for _, p := range at {
		devices = append(devices, mps.Device{GPU: id, Instance: p})
	}
	slices.SortFunc(devices, mps.Device.Compare)
	var out []*mps.State
	for _, d := range slices.Compact(devices) {
		if st := s.Observe(ctx, d); st != nil {
			out = append(out, st)
		}
	}
	return out
}

// startedOn lists the instances of a GPU that have a record of a control daemon, or failures of one.
func (s *Supervisor) startedOn(id gpu.UUID) []mps.Device {
	var out []mps.Device
	found, _ := filepath.Glob(filepath.Join(s.RunDir, mps.Whole(id).Name()+"-*", recordName)) // The only error is of the pattern.
	for _, path := range found {
		if rec := (layout{filepath.Dir(path)}).readRecord(); rec != nil && rec.Settings.GPU == id &&
			s.layout(rec.Settings.Device()).record() == path {
			out = append(out, rec.Settings.Device())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.gpus {
		if d.GPU == id && d.IsInstance() {
			out = append(out, d)
		}
	}
	return out
}
