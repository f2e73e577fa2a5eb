package isolation

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// deviceFile is what the driver asks for of a device node. nvidia-modprobe follows it (610.43.03, modprobe-utils/nvidia-modprobe-utils.c),
// and so do the commands that make a node without it.
type deviceFile struct {
	mode, uid, gid uint32
	manual         bool   // No program makes the node or changes it: an administrator does.
	source         string // the file that says it
}

// paramsFile has the parameters of the driver, among them those of the nodes of GPUs.
const paramsFile = "/proc/driver/nvidia/params"

// readDeviceFile reads a file of the driver below root. Without it the driver asks for nothing, and mode is what its program takes.
func readDeviceFile(root, path string, mode uint32) (deviceFile, error) {
	f := deviceFile{mode: mode, source: path}
	b, err := boundedread.Trusted(filepath.Join(root, path), boundedread.Table)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
		if err != nil {
			break // What follows are parameters that are text, which is what an administrator has written.
		}
		switch name {
		case "DeviceFileMode":
			f.mode = uint32(n) & 0o777
		case "DeviceFileUID":
			f.uid = uint32(n)
		case "DeviceFileGID":
			f.gid = uint32(n)
		case "ModifyDeviceFiles", "DeviceFileModify": // of a GPU, of a capability
			f.manual = n != 1
		}
	}
	return f, nil
}
