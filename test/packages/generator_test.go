package packages

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The unit of the daemon has the kernel's log where there is one, and the network where the settings have an address for metrics.
func TestGenerator(t *testing.T) {
	t.Parallel()
	const (
		log     = "gpushared.service.d/50-kernel-log.conf"
		network = "gpushared.service.d/50-metrics-address.conf"
	)
	kmsg, err := os.Stat("/dev/kmsg")
	hasLog := err == nil && kmsg.Mode()&fs.ModeCharDevice != 0
	for name, c := range map[string]struct {
		settings string
		log      bool
		want     []string
	}{
		"nothing":                    {"", false, nil},
		"the kernel's log":           {"", true, []string{log}},
		"an address":                 {"log_level: info\nmetrics_address: 10.0.0.7:9735\n", false, []string{network}},
		"an address in quotes":       {"metrics_address:   \"[::]:9735\" # all\n", false, []string{network}},
		"an empty address":           {"metrics_address: \"\"\n", false, nil},
		"no address but a remark":    {"metrics_address: # none\n", false, nil},
		"an address that is removed": {"#metrics_address: 10.0.0.7:9735\n", false, nil},
		"both":                       {"metrics_address: 10.0.0.7:9735\n", true, []string{log, network}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, out := t.TempDir(), t.TempDir()
			if c.settings != "" {
				host{}.write(t, filepath.Join(root, "etc/gpushare/gpushared.yaml"), c.settings)
			}
			if c.log {
				if !hasLog {
					t.Skip("needs /dev/kmsg")
				}
				if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("/dev/kmsg", filepath.Join(root, "dev/kmsg")); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "sh", "../../packaging/generator/gpushare-generator", out, out, out)
			cmd.Env = []string{"PATH=/usr/bin:/bin", "SYSTEMD_ROOT=" + root}
			if b, err := cmd.CombinedOutput(); err != nil || len(b) > 0 {
				t.Fatalf("%v: %s", err, b)
			}
			got := written(t, out)
			if diff := cmp.Diff(c.want, slices.Sorted(maps.Keys(got))); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			for _, text := range got {
				if !strings.HasPrefix(text, "[Service]\n") {
					t.Errorf("a drop-in is %q", text)
				}
			}
		})
	}
}

func written(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
