package report

import (
	"errors"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// settingsPath is the settings file of the packages.
const settingsPath = "/etc/gpushare/gpushared.yaml"

// DriverError is the error for a driver that does not answer, with a hint what to do.
func DriverError(err error) *api.Error {
	e := &api.Error{Kind: api.KindUnavailable, Message: "cannot read the GPUs: " + err.Error()}
	switch {
	case errors.Is(err, gpu.ErrParked):
		e.Message, e.Hint = "the node is in maintenance: the driver is not used", "'gpushare maintenance off' uses it again, when it is loaded"
	case errors.Is(err, gpu.ErrNotLoaded):
		e.Hint = "load the driver: 'modprobe nvidia', and see 'dmesg' when that fails"
	case errors.Is(err, gpu.ErrVersionMismatch):
		e.Hint = "the driver was upgraded without a reload: reboot, or unload and load the nvidia modules"
	case errors.Is(err, gpu.ErrNoLibrary):
		e.Hint = "install the driver's libnvidia-ml.so.1, or name it with library: in " + settingsPath
	case errors.Is(err, gpu.ErrStuck), errors.Is(err, gpu.ErrTimeout):
		e.Hint = "the driver hangs: see 'dmesg' for NVRM lines; a reboot may be needed"
	default:
		e.Hint = "see 'gpushare doctor'"
	}
	return e
}
