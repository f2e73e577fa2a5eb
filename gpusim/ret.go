package gpusim

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// Ret is a return code of the vendor's library.
type Ret int32

// The return codes of the virtual driver.
const (
	Success               Ret = 0
	Uninitialized         Ret = 1
	InvalidArgument       Ret = 2
	NotSupported          Ret = 3
	NoPermission          Ret = 4
	NotFound              Ret = 6
	InsufficientSize      Ret = 7
	DriverNotLoaded       Ret = 9
	Timeout               Ret = 10
	FunctionNotFound      Ret = 13
	GPUIsLost             Ret = 15
	ResetRequired         Ret = 16
	OperatingSystem       Ret = 17
	VersionMismatch       Ret = 18
	InUse                 Ret = 19
	InsufficientResources Ret = 23
	GPUNotFound           Ret = 28
	UnknownError          Ret = 999
)

// sentinel returns the port's error of a code.
func (r Ret) sentinel() error {
	switch r {
	case InvalidArgument, OperatingSystem: // the one call that returns the latter cannot open its argument
		return gpu.ErrInvalid
	case NotSupported:
		return gpu.ErrNotSupported
	case NoPermission:
		return gpu.ErrDenied
	case NotFound:
		return gpu.ErrNotFound
	case DriverNotLoaded:
		return gpu.ErrNotLoaded
	case Timeout:
		return gpu.ErrTimeout
	case FunctionNotFound:
		return gpu.ErrMissing
	case GPUIsLost, GPUNotFound:
		return gpu.ErrLost
	case ResetRequired:
		return gpu.ErrResetRequired
	case VersionMismatch:
		return gpu.ErrVersionMismatch
	case InUse:
		return gpu.ErrInUse
	case InsufficientResources:
		return gpu.ErrInsufficientResources
	}
	return gpu.ErrUnknown
}

// err returns the port's error of a code, nil for success.
func (r Ret) err(op string, id gpu.UUID) error {
	if r == Success {
		return nil
	}
	return &gpu.Error{Op: op, GPU: id, Code: int(r), Err: r.sentinel()}
}

// CUDAError is a failed CUDA call: the error number of the CUDA driver and its text.
type CUDAError struct {
	Code int
	Text string
}

// Error returns number and text.
func (e *CUDAError) Error() string { return fmt.Sprintf("CUDA error %d: %s", e.Code, e.Text) }

// The CUDA errors of the virtual driver.
var (
	errOutOfMemory      = &CUDAError{2, "out of memory"}
	errUnavailable      = &CUDAError{46, "all CUDA-capable devices are busy or unavailable"}
	errNoDevice         = &CUDAError{100, "no CUDA-capable device is detected"}
	errBadDevice        = &CUDAError{101, "invalid device ordinal"}
	errContextDestroyed = &CUDAError{709, "context is destroyed"}
	errBadValue         = &CUDAError{1, "invalid argument"}
)
