package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name, text string
		says       []string // of the error; none: it is accepted
		check      func(*testing.T, Settings)
	}{
		{"empty", "", nil, func(t *testing.T, s Settings) {
			if s.HostRoot != "/" || s.StateDir != "/var/lib/gpushare" || s.Socket != "/run/gpushare/gpushare.sock" || s.Library != "" ||
				s.MPSControl != "/usr/bin/nvidia-cuda-mps-control" || time.Duration(s.ConvergeInterval) != 30*time.Second || s.Worker == "" || s.Thaw == "" {
				t.Errorf("the defaults are %+v", s)
			}
		}},
		{"a virtual node", "host_root: /tmp/x\n", nil, func(t *testing.T, s Settings) {
			if s.Library != "/tmp/x/usr/lib/libnvidia-ml.so.1" || s.MPSControl != "/tmp/x/usr/bin/nvidia-cuda-mps-control" {
				t.Errorf("below a host root they are %+v", s)
			}
		}},
		{"settings override defaults", "host_root: /tmp/x\nlibrary: /l\nmps_control: /m\nworker: /w\nthaw: /t\nsocket: /s\nconverge_interval: 5s\n", nil, func(t *testing.T, s Settings) {
			if s.Library != "/l" || s.MPSControl != "/m" || s.Worker != "/w" || s.Thaw != "/t" || s.Socket != "/s" || time.Duration(s.ConvergeInterval) != 5*time.Second {
				t.Errorf("they are %+v", s)
			}
		}},
		{"the socket is in the run directory", "run_dir: /tmp/r\n", nil, func(t *testing.T, s Settings) {
			if s.Socket != "/tmp/r/gpushare.sock" {
				t.Errorf("the socket is %s", s.Socket)
			}
		}},
		{"unknown key", "host_rot: /\n", []string{"host_rot", "line 1"}, nil},
		{"key twice", "host_root: /\nhost_root: /\n", []string{"host_root"}, nil},
		{"invalid YAML", "a: b: c\n", []string{"mapping values"}, nil},
		{"relative path", "state_dir: lib\n", []string{"state_dir", "lib", "absolute"}, nil},
		{"unknown value", "systemd: maybe\n", []string{"systemd", "auto or off"}, nil},
		{"an invalid duration", "log_level: info\nconverge_interval: often\n", []string{"line 2", "often"}, nil},
		{"too often", "converge_interval: 1ms\n", []string{"converge_interval", "1s"}, nil},
		{"no time for the driver", "driver_read_timeout: 10ms\n", []string{"driver_read_timeout", "1s"}, nil},
		{"no time for a change", "driver_change_timeout: 0s\n", []string{"driver_change_timeout", "1s"}, nil},
		{"sampled too often", "sample_interval: 1ms\n", []string{"sample_interval", "100ms"}, nil},
		{"an address without a port", "metrics_address: 10.0.0.7\nmetrics_web_config: /w\n", []string{"metrics_address", "10.0.0.7", "a port"}, nil},
		{"an address without protection", "metrics_address: '[::]:9735'\n", []string{"metrics_web_config", "set both"}, nil},
		{"protection without an address", "metrics_web_config: /w\n", []string{"metrics_address", "set both"}, nil},
		{"a relative directory of job files", "job_files_dir: jobs\n", []string{"job_files_dir", "jobs", "absolute"}, nil},
		{"no log level", "log_level: loud\n", []string{"log_level", "loud"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "gpushared.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			s, err := Load(file)
			if len(c.says) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				c.check(t, s)
				return
			}
			if !errors.Is(err, ErrWrong) {
				t.Fatalf("it is accepted, or refused with another error: %v", err)
			}
			for _, word := range c.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error does not contain %q: %v", word, err)
				}
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, ErrWrong) {
		t.Errorf("a given file that does not exist: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for _, address := range []string{"", "10.0.0.7", ":metrics", "10.0.0.7:70000", "10.0.0.7:-1"} {
		if err := checkAddress(address); err == nil {
			t.Errorf("the address %q is accepted", address)
		}
	}
}
