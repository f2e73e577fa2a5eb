package power

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
)

func (c *Caps) path(id gpu.UUID) string { return filepath.Join(c.Dir, string(id)+".json") }

// before returns the recorded limit from before; nil when none is.
func (c *Caps) before(id gpu.UUID) (*Before, error) {
	b, err := boundedread.Trusted(c.path(id), boundedread.Record)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the power limit from before: %w", err)
	}
	var out Before
	if err := json.Unmarshal(b, &out); err != nil || out.Limit == 0 {
		return nil, fmt.Errorf(
			"cannot read the power limit from before: %s is damaged; remove it, and set the limit with 'nvidia-smi -pl' after the GPU is unmanaged",
			c.path(id),
		)
	}
	return &out, nil
}

// keep records the limit from before, durably: it is on disk before the limit is set. nil removes the record.
func (c *Caps) keep(id gpu.UUID, before *Before) error {
	if before == nil {
		if err := os.Remove(c.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot remove the record of a power limit: %w", err)
		}
		return nil
	}
	if is, err := c.before(id); err == nil && is != nil && *is == *before {
		return nil
	}
	b, err := json.Marshal(before)
	if err == nil {
		err = os.MkdirAll(c.Dir, 0o700)
	}
	if err == nil {
		err = durable.Write(c.path(id), b)
	}
	if err != nil {
		return fmt.Errorf("cannot record the power limit from before: %w", err)
	}
	return nil
}
