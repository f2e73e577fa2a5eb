package mig

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// Check returns why the driver cannot carry out every step of the plan, or cannot undo one. It is called before the first step:
// a GPU whose MIG mode was changed has lost its work, also when no instance can be created then.
func (r Result) Check(m gpu.MIGState) error {
	var err error
	switch {
	case len(r.Create)+len(r.Complete)+len(r.Destroy) > 0, r.Mode != nil && r.Mode.On:
		err = m.Missing.CanChange(r.Mode != nil)
	case r.Mode != nil:
		err = m.Missing.CanSetMode()
	}
	if err != nil {
		return fmt.Errorf("cannot change MIG: %w", err)
	}
	return nil
}
