package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"time"
)

// check refuses invalid settings, each with its name.
func (s *Settings) check() error {
	for _, check := range []func() error{s.checkPaths, s.checkHost, s.checkTimes, s.checkMetrics} {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", ErrWrong, err)
		}
	}
	return nil
}

func (s *Settings) checkPaths() error {
	for _, f := range []struct {
		name, path string
		optional   bool
	}{
		{"host_root", s.HostRoot, false},
		{"state_dir", s.StateDir, false},
		{"run_dir", s.RunDir, false},
		{"cdi_dir", s.CDIDir, false},
		{"spec_file", s.SpecFile, true},
		{"job_files_dir", s.JobFilesDir, true},
	} {
		if !filepath.IsAbs(f.path) && !(f.optional && f.path == "") {
			return fmt.Errorf("%s is %q, which is not an absolute path", f.name, f.path)
		}
	}
	return nil
}

func (s *Settings) checkHost() error {
	if s.Getent != "" && s.Getent != "off" && !filepath.IsAbs(s.Getent) {
		return fmt.Errorf("getent is %q: write the program's absolute path, or off", s.Getent)
	}
	if s.Systemd != "auto" && s.Systemd != "off" {
		return fmt.Errorf("systemd is %q: write auto or off", s.Systemd)
	}
	if s.LoginsCgroup != "" &&
		(s.LoginsCgroup == "/" || filepath.Clean(s.LoginsCgroup) != s.LoginsCgroup || !filepath.IsAbs(s.LoginsCgroup)) {
		return fmt.Errorf("logins_cgroup is %q: write a path below the cgroup v2 mount point, like /user.slice", s.LoginsCgroup)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return fmt.Errorf("log_level is %q: write debug, info, warn or error", s.LogLevel)
	}
	return nil
}

func (s *Settings) checkTimes() error {
	if time.Duration(s.ConvergeInterval) < time.Second || time.Duration(s.SampleInterval) < 100*time.Millisecond {
		return errors.New("converge_interval must be at least 1s and sample_interval at least 100ms")
	}
	for _, f := range []struct {
		name  string
		limit Duration
	}{{"driver_read_timeout", s.DriverReadTimeout}, {"driver_change_timeout", s.DriverChangeTimeout}} {
		if time.Duration(f.limit) < time.Second {
			return fmt.Errorf("%s must be at least 1s", f.name)
		}
	}
	return nil
}

func (s *Settings) checkMetrics() error {
	if s.MetricsAddress != "" {
		if err := checkAddress(s.MetricsAddress); err != nil {
			return err
		}
	}
	if (s.MetricsAddress != "") != filepath.IsAbs(s.MetricsWebConfig) {
		return fmt.Errorf(
			"metrics_address is %q and metrics_web_config is %q: set both, the second as an absolute path, or none", s.MetricsAddress,
			s.MetricsWebConfig,
		)
	}
	return nil
}

// checkAddress refuses an address that is not HOST:PORT.
func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("metrics_address is %q: write an address and a port, like 10.0.0.7:9735 or [::]:9735", address)
	}
	return nil
}
