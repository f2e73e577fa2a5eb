package status

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/slurm"
	"github.com/gpushare/gpushare/internal/version"
	"github.com/gpushare/gpushare/test/programs"
)

// Where Slurm places, doctor says whether its Prolog and Epilog are there and of this version.
func TestSlurmScriptsOfTheNode(t *testing.T) {
	t.Parallel()
	spec := func(owner string) *state.Desired {
		return &state.Desired{GPUs: map[gpu.UUID]*api.GPUSpec{"GPU-0": {Mode: api.ModeTimeslice, Owner: owner}}}
	}
	mine := slurm.Headed("#!/bin/sh\n", version.Version, nil)
	older := slurm.Headed("#!/bin/sh\n", "v0.0.1", nil)
	for _, c := range []struct {
		name           string
		slurmd         int
		owner          string
		prolog, epilog string
		ok, warn       string
	}{
		{"no slurmd", 0, api.OwnerSlurm, "", "", "", ""},
		{"Slurm does not place", 42, "", "", "", "", ""},
		{"none", 42, api.OwnerSlurm, "", "", "", "/etc/slurm/prolog.d/gpushare is not there"},
		{"both", 42, api.OwnerSlurm, mine, mine, "of this version", ""},
		{"one", 42, api.OwnerSlurm, mine, "", "", "/etc/slurm/epilog.d/gpushare is not there"},
		{"another version", 42, api.OwnerSlurm, older, mine, "", "is of gpushare v0.0.1"},
		{"of the site", 42, api.OwnerSlurm, mine, "#!/bin/sh\n", "", "is not of gpushare"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"prolog.d": c.prolog, "epilog.d": c.epilog} {
			path := filepath.Join(dir, "etc/slurm", name, "gpushare")
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if text == "" {
				continue
			}
			if err := programs.Write(path, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		var said, warned string
		checkSlurmScripts(
			dir, &external.Host{Slurmd: c.slurmd}, spec(c.owner), func(_, message string) { said += message },
			func(_, message, hint string) {
				warned += message
				if !strings.Contains(hint, "'gpushare slurm install'") {
					t.Errorf("%s: the hint is %q", c.name, hint)
				}
			},
		)
		if !strings.Contains(said, c.ok) || c.ok == "" && said != "" || !strings.Contains(warned, c.warn) || c.warn == "" && warned != "" {
			t.Errorf("%s: ok %q, warning %q", c.name, said, warned)
		}
	}
}

// A Slurm that a site builds has its files elsewhere.
func TestSlurmScriptsInAnotherDirectory(t *testing.T) {
	t.Parallel()
	const conf, scripts = "etc/slurm/slurm.conf", "srv/site/prolog.d/gpushare"
	for _, c := range []struct {
		name  string
		files map[string]string
		exe   string
		want  string
	}{
		{"nothing", nil, "", ""},
		{"a link without its scripts", map[string]string{conf: ""}, "", slurm.Directory},
		{"no slurm.conf", map[string]string{"etc/slurm/gres.conf": ""}, "", slurm.Directory},
		{"its default of a build", map[string]string{"usr/local/etc/slurm.conf": ""}, "", "/usr/local/etc"},
		{"another prefix", map[string]string{"opt/slurm/etc/slurm.conf": ""}, "", "/opt/slurm/etc"},
		{"the scripts", map[string]string{"usr/local/etc/slurm/prolog.d/gpushare": ""}, "", "/usr/local/etc/slurm"},
		{
			"slurm.conf in the usual directory names another",
			map[string]string{conf: "ClusterName=lab\nprolog = /opt/other,/srv/site/prolog.d/* # of gpushare\n", scripts: ""},
			"", "/srv/site",
		},
		{
			"a slurm.conf of slurmctld names another, next to the usual directory",
			map[string]string{"etc/slurm/gres.conf": "", "run/slurm/conf/slurm.conf": "Prolog=/srv/site/prolog.d/*\n", scripts: ""},
			"", "/srv/site",
		},
		{
			"the argument of slurmd, next to the usual directory",
			map[string]string{conf: "", "proc/42/cmdline": "/usr/sbin/slurmd\x00-D\x00-f\x00/srv/site/slurm.conf\x00", scripts: ""},
			"", "/srv/site",
		},
		{
			"the argument in one word, and no script",
			map[string]string{conf: "", "proc/42/cmdline": "slurmd\x00-f/srv/site/slurm.conf\x00", "srv/site/slurm.conf": ""},
			"", "/srv/site",
		},
		{
			"the environment of slurmd",
			map[string]string{conf: "", "proc/42/environ": "A=1\x00SLURM_CONF=/srv/site/slurm.conf\x00", scripts: ""},
			"", "/srv/site",
		},
		{
			"the prefix of its program",
			map[string]string{conf: "", "sw/slurm/etc/prolog.d/gpushare": ""},
			"/sw/slurm/sbin/slurmd",
			"/sw/slurm/etc",
		},
		{"a prefix that has nothing", map[string]string{conf: ""}, "/sw/slurm/sbin/slurmd", slurm.Directory},
		{"a relative Prolog", map[string]string{conf: "Prolog=prolog.d/*\n"}, "", slurm.Directory},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if c.exe != "" {
			if err := os.MkdirAll(filepath.Join(root, "proc/42"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(c.exe, filepath.Join(root, "proc/42/exe")); err != nil {
				t.Fatal(err)
			}
		}
		if got := slurmDirectory(root, 42); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
