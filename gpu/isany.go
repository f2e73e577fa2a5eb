package gpu

import (
	"errors"
	"slices"
)

// IsAny tells whether an error is one of several.
func IsAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}
