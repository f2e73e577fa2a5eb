package nodefile

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// switching is the description of how processes share a GPU.
type switching struct {
	Slice        string `yaml:"slice"`
	WholeKernels bool   `yaml:"whole_kernels"`
}

func (t switching) switching() (engine.Switching, error) {
	out := engine.Switching{Whole: t.WholeKernels}
	if t.Slice != "" {
		d, err := time.ParseDuration(t.Slice)
		if err != nil || d == 0 {
			return out, fmt.Errorf("slice must be a duration such as 2ms, not %q", t.Slice)
		}
		out.Slice = d
	}
	return out, out.Validate()
}
