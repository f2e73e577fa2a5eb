//go:build cgo

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// sentinel returns the typed error of a return code; nil for success, gpu.ErrUnknown for other codes.
func sentinel(ret nvml.Return) error {
	switch ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_INVALID_ARGUMENT:
		return gpu.ErrInvalid
	case nvml.ERROR_NOT_SUPPORTED:
		return gpu.ErrNotSupported
	case nvml.ERROR_NO_PERMISSION:
		return gpu.ErrDenied
	case nvml.ERROR_NOT_FOUND:
		return gpu.ErrNotFound
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return gpu.ErrNotLoaded
	case nvml.ERROR_TIMEOUT:
		return gpu.ErrTimeout
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return gpu.ErrNoLibrary
	case nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return gpu.ErrMissing
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_NOT_FOUND:
		return gpu.ErrLost
	case nvml.ERROR_RESET_REQUIRED:
		return gpu.ErrResetRequired
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return gpu.ErrVersionMismatch
	case nvml.ERROR_IN_USE:
		return gpu.ErrInUse
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return gpu.ErrInsufficientResources
	}
	return gpu.ErrUnknown
}

// fail returns the error of a call that returned ret; nil for success.
func fail(op string, id gpu.UUID, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &gpu.Error{Op: op, GPU: id, Code: int(ret), Err: sentinel(ret)}
}

// failf returns an error with more text than the return code has.
func failf(op string, id gpu.UUID, ret nvml.Return, format string, args ...any) error {
	err := fmt.Errorf("%w: %w", sentinel(ret), fmt.Errorf(format, args...))
	return &gpu.Error{Op: op, GPU: id, Code: int(ret), Err: err}
}

// refuse returns an error without a return code of the driver.
func refuse(op string, id gpu.UUID, err error) error {
	return &gpu.Error{Op: op, GPU: id, Err: err}
}

// absent reports whether ret means that there is nothing to read.
func absent(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_FUNCTION_NOT_FOUND
}

// Unusable reports whether err means that the library lost its connection to the driver because the driver was reloaded.
// It works again only in another process or after another initialisation.
func Unusable(err error) bool {
	var e *gpu.Error
	return errors.As(err, &e) && e.Code == int(nvml.ERROR_UNINITIALIZED)
}
