package gpu

import (
	"errors"
	"slices"
)

// IsAny reports whether err is one of the targets.
func IsAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}
