package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
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

func (s *Supervisor) previousPath(id gpu.UUID) string {
	return filepath.Join(s.StateDir, mps.Whole(id).Name()+".json")
}

// previous returns nil when no mode is recorded.
func (s *Supervisor) previous(id gpu.UUID) (*previousMode, error) {
	b, err := boundedread.Trusted(s.previousPath(id), boundedread.Record)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the compute mode from before MPS: %w", err)
	}
	var p previousMode
	if err := json.Unmarshal(b, &p); err != nil || p.Mode == "" {
		return nil, fmt.Errorf(
			"cannot read the compute mode from before MPS: %s is damaged; write the mode with 'nvidia-smi -c' and remove the file",
			s.previousPath(id),
		)
	}
	return &p, nil
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
	p, err := s.previous(id)
	if err != nil || p != nil && p.applies(boot, now) {
		return err
	}
	b, err := json.Marshal(previousMode{GPU: id, Mode: now, Boot: boot})
	if err == nil {
		err = os.MkdirAll(s.StateDir, 0o700)
	}
	if err == nil {
		err = durable.Write(s.previousPath(id), b)
	}
	if err != nil {
		return fmt.Errorf("cannot record the compute mode from before MPS: %w", err)
	}
	return nil
}

// forgetPrevious removes the recorded mode after it was restored.
func (s *Supervisor) forgetPrevious(id gpu.UUID) error {
	if err := os.Remove(s.previousPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove the record of a compute mode: %w", err)
	}
	return nil
}
