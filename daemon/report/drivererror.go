package report

import (
	"errors"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// settingsPath is where the settings of a packaged daemon are.
const settingsPath = "/etc/gpushare/gpushared.yaml"

// DriverError says what to do about a driver that does not answer.
func DriverError(err error) *api.Error {
	e := &api.Error{Kind: api.KindUnavailable, Message: "the GPUs cannot be seen: " + err.Error()}
	switch {
	case errors.Is(err, gpu.ErrNotLoaded):
		e.Hint = "load the driver: 'modprobe nvidia', and see 'dmesg' when that fails"
	case errors.Is(err, gpu.ErrVersionMismatch):
		e.Hint = "the driver was upgraded without a reload: reboot, or unload and load the nvidia modules"
	case errors.Is(err, gpu.ErrNoLibrary):
		e.Hint = "install the driver's libnvidia-ml.so.1, or name it with library: in " + settingsPath
	case errors.Is(err, gpu.ErrStuck), errors.Is(err, gpu.ErrTimeout):
		e.Hint = "the driver hangs: see 'dmesg' for NVRM lines; a reboot may be needed"
	default:
		e.Hint = "'gpushare doctor' says more"
	}
	return e
}
