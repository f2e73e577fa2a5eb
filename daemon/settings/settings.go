// Package settings reads the settings of gpushared: the file, its defaults, and what is wrong in it. The spec configures the node; these
// configure the daemon. It starts nothing and opens nothing but that file.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// Settings configure the daemon; the spec configures the node. Every setting has a default that works.
type Settings struct {
	File string `yaml:"-"` // the file that was read; empty: Path

	HostRoot            string   `yaml:"host_root"`     // where proc, sys and dev of the GPUs are; / but for a virtual node
	Library             string   `yaml:"library"`       // of NVML; empty: the loader's, or host_root's
	StateDir            string   `yaml:"state_dir"`     // persistent
	RunDir              string   `yaml:"run_dir"`       // kept until reboot
	CDIDir              string   `yaml:"cdi_dir"`       // where container runtimes look for devices
	Socket              string   `yaml:"socket"`        // of the API; empty: run_dir/gpushare.sock
	SpecFile            string   `yaml:"spec_file"`     // the only source of the spec, with conf.d next to it; empty: apply is
	Worker              string   `yaml:"worker"`        // gpushare-nvml
	Thaw                string   `yaml:"thaw"`          // gpushare-thaw
	Start               string   `yaml:"start"`         // gpushare-start
	Front               string   `yaml:"front"`         // gpushare-front
	MPSControl          string   `yaml:"mps_control"`   // nvidia-cuda-mps-control
	Getent              string   `yaml:"getent"`        // resolves names through the host's directory; empty: searched, off: only files
	Systemd             string   `yaml:"systemd"`       // auto | off
	CgroupRoot          string   `yaml:"cgroup_root"`   // the subtree's name on hosts without systemd
	LoginsCgroup        string   `yaml:"logins_cgroup"` // contains every login; empty: /user.slice with systemd, none without
	ConvergeInterval    Duration `yaml:"converge_interval"`
	SampleInterval      Duration `yaml:"sample_interval"`
	DriverReadTimeout   Duration `yaml:"driver_read_timeout"`   // a GPU whose reading takes longer counts as stuck
	DriverChangeTimeout Duration `yaml:"driver_change_timeout"` // and one whose change takes longer
	MetricsAddress      string   `yaml:"metrics_address"`       // HOST:PORT for scrapes; empty: only the socket
	MetricsWebConfig    string   `yaml:"metrics_web_config"`    // TLS and authentication for it
	JobFilesDir         string   `yaml:"job_files_dir"`         // of dcgm-exporter; empty: none are written
	LogLevel            string   `yaml:"log_level"`             // debug | info | warn | error
}

// Duration is a duration in the settings file.
type Duration time.Duration

// UnmarshalYAML reads "30s".
func (s *Duration) UnmarshalYAML(n *yaml.Node) error {
	var d api.Duration
	if err := d.UnmarshalText([]byte(n.Value)); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*s = Duration(d)
	return nil
}

// String is "30s".
func (s Duration) String() string { return time.Duration(s).String() }

// Path is the default path of the settings.
const Path = "/etc/gpushare/gpushared.yaml"

// ErrWrong is a mistake in the settings: restarting does not help (exit 78).
var ErrWrong = errors.New("the settings are wrong")

// Defaults are the settings of an empty file, before Complete.
func Defaults() Settings {
	return Settings{
		HostRoot:            "/",
		StateDir:            "/var/lib/gpushare",
		RunDir:              "/run/gpushare",
		CDIDir:              "/run/cdi",
		Systemd:             "auto",
		CgroupRoot:          "gpushare",
		ConvergeInterval:    Duration(30 * time.Second),
		SampleInterval:      Duration(time.Second),
		DriverReadTimeout:   Duration(2 * time.Second),
		DriverChangeTimeout: Duration(30 * time.Second),
		LogLevel:            "info",
	}
}

// Load reads a settings file; a missing one at the usual place gives the defaults.
func Load(file string) (Settings, error) {
	s := Defaults()
	s.File = file
	explicit := file != ""
	if !explicit {
		file = Path
	}
	b, err := boundedread.Trusted(file, boundedread.Settings)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !explicit:
	case err != nil:
		return s, fmt.Errorf("%w: cannot read them: %w", ErrWrong, err)
	default:
		d := yaml.NewDecoder(bytes.NewReader(b))
		d.KnownFields(true)
		if err := d.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
			return s, fmt.Errorf("%w: %s: %w", ErrWrong, file, err)
		}
	}
	return s, s.Complete()
}
