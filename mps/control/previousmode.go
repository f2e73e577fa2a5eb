package control

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/before"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// previousMode is the compute mode of a GPU from before bypass was denied. It is kept in the state directory: the run directory
// may be lost while the GPU has the other mode.
type previousMode struct {
	GPU  gpu.UUID        `json:"gpu"`
	Mode gpu.ComputeMode `json:"mode"`
	Boot string          `json:"boot"` // the driver forgets compute modes at a boot
}

// previous are the modes from before.
func (s *Supervisor) previous() *before.Records[previousMode] {
	return &before.Records[previousMode]{
		Dir:     s.StateDir,
		Name:    func(id gpu.UUID) string { return mps.Whole(id).Name() },
		What:    "the compute mode from before MPS",
		Damaged: "write the mode with 'nvidia-smi -c' and remove the file",
		Valid:   func(p previousMode) bool { return p.Mode != "" },
	}
}

// applies reports whether the recorded mode is still the one to restore: in a later boot the GPU began with another one, unless
// its mode was set again since.
func (p *previousMode) applies(boot string, now gpu.ComputeMode) bool {
	return p.Boot == boot || now == gpu.ComputeExclusiveProcess
}

// keepPrevious records the mode that a GPU has before its mode is set, and keeps one that is recorded and still applies.
func (s *Supervisor) keepPrevious(id gpu.UUID, now gpu.ComputeMode) error {
	boot, err := procfs.BootID("/")
	if err != nil {
		return err
	}
	p, err := s.previous().Get(id)
	if err != nil || p != nil && p.applies(boot, now) {
		return err
	}
	return s.previous().Keep(id, previousMode{GPU: id, Mode: now, Boot: boot})
}
