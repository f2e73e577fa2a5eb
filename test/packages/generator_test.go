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
	"golang.org/x/sys/unix"
)

// The unit of the daemon has the kernel's log where there is one, and the network where the settings have an address for metrics.
func TestGenerator(t *testing.T) {
	t.Parallel()
	const (
		log     = "gpushared.service.d/50-kernel-log.conf"
		network = "gpushared.service.d/50-metrics-address.conf"
		names   = "gpushared.service.d/50-name-service.conf"
	)
	for name, c := range map[string]struct {
		settings string
		sources  string
		log      bool
		want     []string
	}{
		"nothing":                    {"", "", false, nil},
		"the kernel's log":           {"", "", true, []string{log}},
		"an address":                 {"log_level: info\nmetrics_address: 10.0.0.7:9735\n", "", false, []string{network}},
		"an address in quotes":       {"metrics_address:   \"[::]:9735\" # all\n", "", false, []string{network}},
		"an empty address":           {"metrics_address: \"\"\n", "", false, nil},
		"no address but a remark":    {"metrics_address: # none\n", "", false, nil},
		"an address that is removed": {"#metrics_address: 10.0.0.7:9735\n", "", false, nil},
		"an address that is null":    {"metrics_address: null\n", "", false, nil},
		"an address that is nothing": {"metrics_address: ~ # none\n", "", false, nil},
		"an empty address, quoted":   {"metrics_address: '' # none\n", "", false, nil},
		"sources of the host":        {"", "# nis\npasswd: files systemd sss winbind # ldap\nhosts: files nis\n", false, nil},
		"an older directory":         {"", "passwd:\tfiles\tldap\n", false, []string{names}},
		"groups of NIS":              {"", "passwd: files\ngroup: files nis [NOTFOUND=return]\n", false, []string{names}},
		"compatible groups":          {"", "initgroups:compat\n", false, []string{names}},
		"both":                       {"metrics_address: 10.0.0.7:9735\n", "", true, []string{log, network}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, out := t.TempDir(), t.TempDir()
			if c.settings != "" {
				host{}.write(t, filepath.Join(root, "etc/gpushare/gpushared.yaml"), c.settings)
			}
			if c.sources != "" {
				host{}.write(t, filepath.Join(root, "etc/nsswitch.conf"), c.sources)
			}
			if c.log {
				if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
					t.Fatal(err)
				}
				// A device that every user can open, in place of the log, which only root can.
				if err := os.Symlink(os.DevNull, filepath.Join(root, "dev/kmsg")); err != nil {
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

// A device that cannot be opened, as in a container, is no standard input: the unit would fail.
func TestGeneratorWithALogThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	root, out := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(root, "dev/kmsg"), unix.S_IFCHR|0o600, int(unix.Mkdev(511, 1<<19))); err != nil {
		t.Skipf("needs a device node: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "../../packaging/generator/gpushare-generator", out, out, out)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SYSTEMD_ROOT=" + root}
	if b, err := cmd.CombinedOutput(); err != nil || len(b) > 0 {
		t.Fatalf("%v: %s", err, b)
	}
	if got := written(t, out); len(got) != 0 {
		t.Errorf("it wrote %v", got)
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
