package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/metrics"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/names"
)

// Settings configure the daemon; the spec configures the node. Every setting has a default that works.
type Settings struct {
	File string `yaml:"-"` // the file that was read; empty: SettingsPath

	HostRoot            string           `yaml:"host_root"`     // where proc, sys and dev of the GPUs are; / but for a virtual node
	Library             string           `yaml:"library"`       // of NVML; empty: the loader's, or host_root's
	StateDir            string           `yaml:"state_dir"`     // persistent
	RunDir              string           `yaml:"run_dir"`       // kept until reboot
	CDIDir              string           `yaml:"cdi_dir"`       // where container runtimes look for devices
	Socket              string           `yaml:"socket"`        // of the API; empty: run_dir/gpushare.sock
	SpecFile            string           `yaml:"spec_file"`     // the only source of the spec, with conf.d next to it; empty: apply is
	Worker              string           `yaml:"worker"`        // gpushare-nvml
	Thaw                string           `yaml:"thaw"`          // gpushare-thaw
	Start               string           `yaml:"start"`         // gpushare-start
	Front               string           `yaml:"front"`         // gpushare-front
	MPSControl          string           `yaml:"mps_control"`   // nvidia-cuda-mps-control
	Getent              string           `yaml:"getent"`        // resolves names through the host's directory; empty: searched, off: only files
	Systemd             string           `yaml:"systemd"`       // auto | off
	CgroupRoot          string           `yaml:"cgroup_root"`   // the subtree's name on hosts without systemd
	LoginsCgroup        string           `yaml:"logins_cgroup"` // contains every login; empty: /user.slice with systemd, none without
	ConvergeInterval    SettingsDuration `yaml:"converge_interval"`
	SampleInterval      SettingsDuration `yaml:"sample_interval"`
	DriverReadTimeout   SettingsDuration `yaml:"driver_read_timeout"`   // a GPU whose reading takes longer counts as stuck
	DriverChangeTimeout SettingsDuration `yaml:"driver_change_timeout"` // and one whose change takes longer
	MetricsAddress      string           `yaml:"metrics_address"`       // HOST:PORT for scrapes; empty: only the socket
	MetricsWebConfig    string           `yaml:"metrics_web_config"`    // TLS and authentication for it
	JobFilesDir         string           `yaml:"job_files_dir"`         // of dcgm-exporter; empty: none are written
	LogLevel            string           `yaml:"log_level"`             // debug | info | warn | error
}

// SettingsDuration is a duration in the settings file.
type SettingsDuration time.Duration

// UnmarshalYAML reads "30s".
func (s *SettingsDuration) UnmarshalYAML(n *yaml.Node) error {
	var d api.Duration
	if err := d.UnmarshalText([]byte(n.Value)); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*s = SettingsDuration(d)
	return nil
}

// String is "30s".
func (s SettingsDuration) String() string { return time.Duration(s).String() }

// SettingsPath is the default path of the settings.
const SettingsPath = "/etc/gpushare/gpushared.yaml"

// ErrSettings is a mistake in the settings: restarting does not help (exit 78).
var ErrSettings = errors.New("the settings are wrong")

func defaultSettings() Settings {
	return Settings{
		HostRoot:            "/",
		StateDir:            "/var/lib/gpushare",
		RunDir:              "/run/gpushare",
		CDIDir:              "/run/cdi",
		Systemd:             "auto",
		CgroupRoot:          "gpushare",
		ConvergeInterval:    SettingsDuration(30 * time.Second),
		SampleInterval:      SettingsDuration(time.Second),
		DriverReadTimeout:   SettingsDuration(2 * time.Second),
		DriverChangeTimeout: SettingsDuration(30 * time.Second),
		LogLevel:            "info",
	}
}

// LoadSettings reads a settings file; a missing one at the usual place gives the defaults.
func LoadSettings(file string) (Settings, error) {
	s := defaultSettings()
	s.File = file
	explicit := file != ""
	if !explicit {
		file = SettingsPath
	}
	b, err := boundedread.Trusted(file, boundedread.Settings)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !explicit:
	case err != nil:
		return s, fmt.Errorf("%w: cannot read them: %w", ErrSettings, err)
	default:
		d := yaml.NewDecoder(bytes.NewReader(b))
		d.KnownFields(true)
		if err := d.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
			return s, fmt.Errorf("%w: %s: %w", ErrSettings, file, err)
		}
	}
	return s, s.complete()
}

// complete sets values that depend on other settings, and refuses invalid ones.
func (s *Settings) complete() error {
	for _, dir := range []struct{ name, path string }{
		{"host_root", s.HostRoot}, {"state_dir", s.StateDir}, {"run_dir", s.RunDir}, {"cdi_dir", s.CDIDir},
	} {
		if !filepath.IsAbs(dir.path) {
			return fmt.Errorf("%w: %s is %q, which is not an absolute path", ErrSettings, dir.name, dir.path)
		}
	}
	if s.Getent != "" && s.Getent != "off" && !filepath.IsAbs(s.Getent) {
		return fmt.Errorf("%w: getent is %q: write the program's absolute path, or off", ErrSettings, s.Getent)
	}
	if s.SpecFile != "" && !filepath.IsAbs(s.SpecFile) {
		return fmt.Errorf("%w: spec_file is %q, which is not an absolute path", ErrSettings, s.SpecFile)
	}
	if s.Systemd != "auto" && s.Systemd != "off" {
		return fmt.Errorf("%w: systemd is %q: write auto or off", ErrSettings, s.Systemd)
	}
	if s.LoginsCgroup != "" &&
		(s.LoginsCgroup == "/" || filepath.Clean(s.LoginsCgroup) != s.LoginsCgroup || !filepath.IsAbs(s.LoginsCgroup)) {
		return fmt.Errorf(
			"%w: logins_cgroup is %q: write a path below the cgroup v2 mount point, like /user.slice", ErrSettings, s.LoginsCgroup,
		)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return fmt.Errorf("%w: log_level is %q: write debug, info, warn or error", ErrSettings, s.LogLevel)
	}
	if time.Duration(s.ConvergeInterval) < time.Second || time.Duration(s.SampleInterval) < 100*time.Millisecond {
		return fmt.Errorf("%w: converge_interval must be at least 1s and sample_interval at least 100ms", ErrSettings)
	}
	if time.Duration(s.DriverReadTimeout) < time.Second {
		return fmt.Errorf("%w: driver_read_timeout must be at least 1s", ErrSettings)
	}
	if time.Duration(s.DriverChangeTimeout) < time.Second {
		return fmt.Errorf("%w: driver_change_timeout must be at least 1s", ErrSettings)
	}
	if s.MetricsAddress != "" {
		if err := metrics.CheckAddress(s.MetricsAddress); err != nil {
			return fmt.Errorf("%w: %w", ErrSettings, err)
		}
	}
	if (s.MetricsAddress != "") != filepath.IsAbs(s.MetricsWebConfig) {
		return fmt.Errorf(
			"%w: metrics_address is %q and metrics_web_config is %q: set both, the second as an absolute path, or none", ErrSettings,
			s.MetricsAddress, s.MetricsWebConfig,
		)
	}
	if s.JobFilesDir != "" && !filepath.IsAbs(s.JobFilesDir) {
		return fmt.Errorf("%w: job_files_dir is %q, which is not an absolute path", ErrSettings, s.JobFilesDir)
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

// tuning is the settings that change while the daemon runs.
type tuning struct {
	converge, sample time.Duration
}

func tuningOf(s Settings) *tuning {
	return &tuning{converge: time.Duration(s.ConvergeInterval), sample: time.Duration(s.SampleInterval)}
}

// reload reads the settings again. Intervals and the log level change at once; other differences need a restart, and are
// returned. Invalid settings are refused, and the old ones stay in force.
func (d *Daemon) reload() (waiting []string, err error) {
	waiting = []string{}
	s, err := LoadSettings(d.settings.File)
	if err != nil {
		return nil, &api.Error{Kind: api.KindInvalid, Message: err.Error(), Hint: "the old settings stay in force"}
	}
	if old := d.live.tuning.Swap(tuningOf(s)); *old != *tuningOf(s) {
		d.wakeConverge() // The loops take the new intervals up.
	}
	if err := d.live.level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return nil, fmt.Errorf("internal error: a valid log level is refused: %w", err)
	}
	for _, f := range []struct{ name, is, loaded string }{
		{"host_root", d.settings.HostRoot, s.HostRoot},
		{"library", d.settings.Library, s.Library},
		{"state_dir", d.settings.StateDir, s.StateDir},
		{"run_dir", d.settings.RunDir, s.RunDir},
		{"cdi_dir", d.settings.CDIDir, s.CDIDir},
		{"socket", d.settings.Socket, s.Socket},
		{"spec_file", d.settings.SpecFile, s.SpecFile},
		{"worker", d.settings.Worker, s.Worker},
		{"thaw", d.settings.Thaw, s.Thaw},
		{"start", d.settings.Start, s.Start},
		{"front", d.settings.Front, s.Front},
		{"mps_control", d.settings.MPSControl, s.MPSControl},
		{"getent", d.settings.Getent, s.Getent},
		{"systemd", d.settings.Systemd, s.Systemd},
		{"cgroup_root", d.settings.CgroupRoot, s.CgroupRoot},
		{"logins_cgroup", d.settings.LoginsCgroup, s.LoginsCgroup},
		{"metrics_address", d.settings.MetricsAddress, s.MetricsAddress},
		{"metrics_web_config", d.settings.MetricsWebConfig, s.MetricsWebConfig},
		{"job_files_dir", d.settings.JobFilesDir, s.JobFilesDir},
		{"driver_read_timeout", d.settings.DriverReadTimeout.String(), s.DriverReadTimeout.String()},
		{"driver_change_timeout", d.settings.DriverChangeTimeout.String(), s.DriverChangeTimeout.String()},
	} {
		if f.is != f.loaded {
			waiting = append(waiting, f.name)
		}
	}
	d.identities.QueryNames(d.state.Desired().Spec, server.NameWait, true)
	return waiting, nil
}
