package settings

import (
	"cmp"
	"os"
	"path/filepath"

	"github.com/gpushare/gpushare/internal/names"
)

// Complete refuses invalid settings, and sets those that depend on others or on what this host has.
func (s *Settings) Complete() error {
	if err := s.check(); err != nil {
		return err
	}
	if s.Socket == "" {
		s.Socket = filepath.Join(s.RunDir, "gpushare.sock")
	}
	if s.Library == "" && s.HostRoot != "/" {
		s.Library = filepath.Join(s.HostRoot, "usr/lib/libnvidia-ml.so.1")
	}
	if s.MPSControl == "" {
		s.MPSControl = findProgram(s.HostRoot, "nvidia-cuda-mps-control")
	}
	if s.Getent == "" {
		s.Getent = cmp.Or(names.Find(), "off")
	}
	for _, p := range []struct {
		at   *string
		name string
	}{{&s.Worker, "gpushare-nvml"}, {&s.Thaw, "gpushare-thaw"}, {&s.Start, "gpushare-start"}, {&s.Front, "gpushare-front"}} {
		if *p.at == "" {
			*p.at = findInstalled(p.name, "/usr/libexec/gpushare/"+p.name)
		}
	}
	return nil
}

// findProgram finds a program of the driver where packages install it: the daemon's PATH is that of the service manager. If
// it is not installed, the first path is returned, so that the error names it.
func findProgram(root, name string) string {
	places := []string{"usr/bin", "usr/sbin", "usr/local/bin", "bin"}
	for _, dir := range places {
		if p := filepath.Join(root, dir, name); isFile(p) {
			return p
		}
	}
	return filepath.Join(root, places[0], name)
}

// findInstalled finds a program next to this one, as in a build directory, or where packages install it.
func findInstalled(name, installed string) string {
	if self, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(self), name); isFile(p) {
			return p
		}
	}
	return installed
}

func isFile(p string) bool {
	i, err := os.Stat(p)
	return err == nil && i.Mode().IsRegular()
}
