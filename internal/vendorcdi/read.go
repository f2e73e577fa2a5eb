// Package vendorcdi reads what containers need of the driver from the CDI file of NVIDIA's toolkit. It takes over no device.
package vendorcdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/isolation"
)

// files are where the toolkit of NVIDIA writes its CDI file.
var files = []string{"etc/cdi/nvidia.yaml", "var/run/cdi/nvidia.yaml"}

const (
	kind = "nvidia.com/gpu"
	most = 1 << 20 // the largest file that is read
)

// driverLibrary matches the library of the driver that has its version in its name.
var driverLibrary = regexp.MustCompile(`^libcuda\.so\.([0-9]+(?:\.[0-9]+)+)$`)

// Read reads the container edits of the vendor's CDI file: those for all devices, and no device, node or variable. It
// returns nil without an error if there is no such file, and an error if it is malformed or of another driver version.
func Read(root, version string) (*isolation.Vendor, error) {
	for _, name := range files {
		file := filepath.Join(root, name)
		b, err := readFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var v *isolation.Vendor
		if err == nil {
			v, err = parse(b, root, version)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot use the vendor's CDI file %s: %w", file, err)
		}
		return v, nil
	}
	return nil, nil
}

func readFile(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	case info.Mode().Perm()&0o002 != 0:
		return nil, errors.New("every user may write it, and its hooks run as root")
	}
	b, err := boundedread.Trusted(file, most)
	if errors.Is(err, boundedread.ErrTooLarge) {
		err = fmt.Errorf("it has more than %d KiB", most>>10)
	}
	return b, err
}

func parse(b []byte, root, version string) (*isolation.Vendor, error) {
	var tree any
	if err := yaml.Unmarshal(b, &tree); err != nil {
		return nil, err
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("it has a key that is no text: %w", err)
	}
	var s specs.Spec
	d := json.NewDecoder(bytes.NewReader(asJSON))
	if err := d.Decode(&s); err != nil {
		return nil, err
	}
	if s.Kind != kind {
		return nil, fmt.Errorf("its kind is %q, not %s", s.Kind, kind)
	}
	v, found := &isolation.Vendor{}, ""
	for _, m := range s.ContainerEdits.Mounts {
		if m == nil || !path.IsAbs(m.HostPath) || !path.IsAbs(m.ContainerPath) {
			return nil, errors.New("it has a mount without an absolute path")
		}
		if isDevicePath(m.HostPath) || isDevicePath(m.ContainerPath) {
			continue
		}
		if x := driverLibrary.FindStringSubmatch(path.Base(m.HostPath)); x != nil {
			found = x[1]
		}
		own := *m
		own.HostPath = filepath.Join(root, path.Clean(m.HostPath))
		if _, err := os.Stat(own.HostPath); err != nil {
			return nil, fmt.Errorf("%s, which it mounts, is not there", m.HostPath)
		}
		v.Mounts = append(v.Mounts, &own)
	}
	switch found {
	case version:
	case "":
		return nil, errors.New("it has no libcuda.so with a version")
	default:
		return nil, fmt.Errorf("it is for driver %s, and the driver is %s: generate it again", found, version)
	}
	for _, h := range s.ContainerEdits.Hooks {
		if h == nil || !path.IsAbs(h.Path) {
			return nil, errors.New("it has a hook without an absolute path")
		}
		if slices.ContainsFunc(h.Args, func(arg string) bool { return strings.Contains(arg, "/dev/") }) {
			continue
		}
		own := *h
		own.Path = filepath.Join(root, path.Clean(h.Path))
		if info, err := os.Stat(own.Path); err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 ||
			info.Mode().Perm()&0o002 != 0 {
			return nil, fmt.Errorf("its hook %s is not there, is no program, or every user may write it", h.Path)
		}
		v.Hooks = append(v.Hooks, &own)
	}
	return v, nil
}

// isDevicePath reports whether a path belongs to the devices, which are given by leases alone.
func isDevicePath(p string) bool {
	p = path.Clean(p)
	return slices.ContainsFunc(
		[]string{"/dev", "/proc", "/sys"}, func(dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") },
	)
}
