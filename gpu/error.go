package gpu

import (
	"errors"
	"fmt"
)

// The kinds of driver errors. Numbers in parentheses are NVML return codes.
var (
	ErrNotLoaded = errors.New("the NVIDIA driver is not loaded") // DRIVER_NOT_LOADED (9)
	ErrNoLibrary = errors.New("the NVML library was not found")  // LIBRARY_NOT_FOUND (12)
	// LIB_RM_VERSION_MISMATCH (18)
	ErrVersionMismatch = errors.New("the NVML library and the kernel module are of different versions")

	ErrInvalid               = errors.New("invalid argument")                     // INVALID_ARGUMENT (2)
	ErrNotSupported          = errors.New("not supported")                        // NOT_SUPPORTED (3)
	ErrDenied                = errors.New("no permission")                        // NO_PERMISSION (4)
	ErrNotFound              = errors.New("not found")                            // NOT_FOUND (6)
	ErrMissing               = errors.New("this driver lacks the function")       // FUNCTION_NOT_FOUND (13)
	ErrLost                  = errors.New("the GPU is lost")                      // GPU_IS_LOST (15), GPU_NOT_FOUND (28)
	ErrResetRequired         = errors.New("a reset is required")                  // RESET_REQUIRED (16)
	ErrInUse                 = errors.New("in use")                               // IN_USE (19)
	ErrInsufficientResources = errors.New("insufficient resources")               // INSUFFICIENT_RESOURCES (23)
	ErrTimeout               = errors.New("the driver did not answer in time")    // TIMEOUT (10), or the caller's deadline
	ErrStuck                 = errors.New("the driver is stuck")                  // two workers hung at start
	ErrParked                = errors.New("the driver is parked for maintenance") // no worker is started until it is unparked
	ErrUnknown               = errors.New("unknown driver error")                 // anything else
)

// Error is a failed operation. Unwrap returns one of the sentinels.
type Error struct {
	Op   string // "create instance"
	GPU  UUID   // empty for the node
	Code int    // the driver's return code, 0 when the error is not the driver's
	Err  error  // one of the sentinels
}

// Error names the operation, the GPU and the reason.
func (e *Error) Error() string {
	s := "cannot " + e.Op
	if e.GPU != "" {
		s += " on " + string(e.GPU)
	}
	s += ": " + e.Err.Error()
	if e.Code != 0 {
		s += fmt.Sprintf(" (NVML code %d)", e.Code)
	}
	return s
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Err }
