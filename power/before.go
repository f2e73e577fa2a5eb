package power

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/before"
)

// before are the limits from before.
func (c *Caps) before() *before.Records[Before] {
	return &before.Records[Before]{
		Dir:     c.Dir,
		Name:    func(id gpu.UUID) string { return string(id) },
		What:    "the power limit from before",
		Damaged: "remove it, and set the limit with 'nvidia-smi -pl' after the GPU is unmanaged",
		Valid:   func(b Before) bool { return b.Limit != 0 },
	}
}
