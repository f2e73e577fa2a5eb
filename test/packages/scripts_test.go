package packages

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/test/programs"
)

// host is a root directory with scripts instead of the programs that the scripts of the package start. They record their
// arguments.
type host struct {
	root, programs, calls string
}

func newHost(t *testing.T, files map[string]string) host {
	t.Helper()
	h := host{root: t.TempDir(), programs: t.TempDir(), calls: filepath.Join(t.TempDir(), "calls")}
	for name, text := range files {
		h.write(t, filepath.Join(h.root, name), text)
	}
	record := "#!/bin/sh\necho \"${0##*/} $*\" | sed 's#--root=[^ ]* ##; s#" + h.root + "##' >>" + h.calls + "\n"
	h.write(t, filepath.Join(h.programs, "systemd-sysusers"), record)
	h.write(t, filepath.Join(h.programs, "systemd-tmpfiles"), record)
	// A profile whose name is in wrong is not read.
	h.write(t, filepath.Join(h.programs, "apparmor_parser"), record+`test ! -e "`+h.root+`/wrong/${2##*/}"`+"\n")
	// A file with the name of a unit in enabled or failed decides; queries are not recorded.
	h.write(t, filepath.Join(h.programs, "systemctl"), `#!/bin/sh
case "$*" in
*is-enabled*) test -e "`+h.root+`/enabled/$3" ;;
*is-failed*) test -e "`+h.root+`/failed/$3" ;;
*)
	`+strings.TrimPrefix(record, "#!/bin/sh\n")+`
	# The files of every unit have changed since they were loaded.
	case "$*" in
	*start*) test ! -e "`+h.root+`/broken/$2" ;;
	stop*) grep -q daemon-reload "`+h.calls+`" || echo "Warning: The unit file of $2 changed on disk. Run 'systemctl daemon-reload' to reload units." >&2 ;;
	esac
	;;
esac
`)
	return h
}

func (host) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := programs.Write(path, text); err != nil {
		t.Fatal(err)
	}
}

func (h host) has(name string) bool {
	_, err := os.Stat(filepath.Join(h.root, name))
	return err == nil
}

// run runs a script as dpkg does, and returns its exit code, its output and the calls that it recorded.
func (h host) run(t *testing.T, env []string, script, action string) (code int, out string, calls []string) {
	t.Helper()
	text, err := os.ReadFile("../../packaging/scripts/" + script)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(h.programs, script)
	h.write(t, path, strings.ReplaceAll(string(text), "@FORMAT@", "2"))
	if err := os.WriteFile(h.calls, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", path, action)
	cmd.Env = append([]string{"PATH=" + h.programs + ":" + os.Getenv("PATH"), "DPKG_ROOT=" + h.root}, env...)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	recorded, err := os.ReadFile(h.calls)
	if err != nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(b), strings.Split(strings.TrimSuffix(string(recorded), "\n"), "\n")
}

// A host that runs systemd, where the presets enabled every unit.
func running(more map[string]string) map[string]string {
	files := map[string]string{"run/systemd/system/x": ""}
	for _, unit := range []string{"gpushare-login-filter.service", "gpushare-thaw.service", "gpushared.socket", "gpushared.service"} {
		files["enabled/"+unit] = ""
	}
	for name, text := range more {
		files[name] = text
	}
	return files
}

const (
	sysusers = "systemd-sysusers gpushare.conf"
	tmpfiles = "systemd-tmpfiles --create gpushare.conf"
	preset   = "systemctl --quiet --no-reload preset gpushare-login-filter.service gpushare-thaw.service gpushared.socket gpushared.service"
	reload   = "systemctl daemon-reload"

	apparmor = "sys/module/apparmor/parameters/enabled" // Y if AppArmor is active
	daemon   = "etc/apparmor.d/gpushared"
	nvml     = "etc/apparmor.d/gpushare-nvml"
	thaw     = "etc/apparmor.d/gpushare-thaw"
)

// profiles are the calls for each profile.
func profiles(option string) (calls []string) {
	for _, p := range []string{"gpushare-nvml", "gpushare-thaw", "gpushared"} {
		calls = append(calls, "apparmor_parser "+option+" /etc/apparmor.d/"+p)
	}
	return calls
}

func TestInstallation(t *testing.T) {
	t.Parallel()
	started := []string{
		sysusers, tmpfiles, preset, reload, "systemctl start gpushare-login-filter.service", "systemctl start gpushare-thaw.service",
		"systemctl start gpushared.socket", "systemctl start gpushared.service",
	}
	restarted := []string{
		sysusers,
		tmpfiles,
		reload,
		"systemctl try-restart gpushare-thaw.service",
		"systemctl try-restart gpushared.service",
	}
	for _, c := range []struct {
		name            string
		files           map[string]string
		preinst, action string
		calls           []string
		says            string
	}{
		{"an installation starts the units", running(nil), "install", "configure", started, "only observed"},
		{"an installation by rpm", running(nil), "1", "1", started, ""},
		{
			"units that a preset of the host disables are not started",
			map[string]string{"run/systemd/system/x": "", "enabled/gpushare-thaw.service": ""},
			"install", "configure",
			[]string{sysusers, tmpfiles, preset, reload, "systemctl start gpushare-thaw.service"},
			"",
		},
		{"an image is built", nil, "install", "configure", []string{sysusers, tmpfiles, preset}, ""},
		{
			"services may not be started", running(map[string]string{"usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n"}),
			"install", "configure",
			[]string{sysusers, tmpfiles, preset, reload},
			"policy-rc.d forbids",
		},
		{"an upgrade restarts what runs and enables nothing", running(nil), "upgrade", "configure", restarted, ""},
		{"an upgrade by rpm", running(nil), "2", "2", restarted, ""},
		{
			"an upgrade starts a daemon that failed", running(map[string]string{"failed/gpushared.service": ""}), "upgrade", "configure",
			[]string{sysusers, tmpfiles, reload, "systemctl try-restart gpushare-thaw.service", "systemctl restart gpushared.service"},
			"",
		},
		{
			"a daemon that does not start is reported", running(map[string]string{"broken/gpushared.service": ""}), "upgrade", "configure",
			restarted, "systemctl status gpushared.service",
		},
		{
			"with AppArmor the profiles are loaded before the daemon starts", running(map[string]string{apparmor: "Y\n", nvml: "", thaw: "", daemon: ""}), "upgrade", "configure",
			slices.Concat([]string{sysusers, tmpfiles}, profiles("--replace"), restarted[2:]), "",
		},
		{"AppArmor is off", running(map[string]string{apparmor: "N\n", nvml: "", thaw: "", daemon: ""}), "upgrade", "configure", restarted, ""},
		{
			"a profile that is not loaded is reported", running(map[string]string{apparmor: "Y\n", nvml: "", thaw: "", daemon: "", "wrong/gpushare-nvml": ""}), "upgrade", "configure",
			slices.Concat([]string{sysusers, tmpfiles}, profiles("--replace"), restarted[2:]), "apparmor_parser --replace /etc/apparmor.d/gpushare-nvml",
		},
		{"a removal that was refused changes nothing", running(nil), "", "abort-remove", []string{""}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, c.files)
			if c.preinst != "" {
				if code, out, _ := h.run(t, nil, "preinst", c.preinst); code != 0 {
					t.Fatalf("preinst exits with %d: %s", code, out)
				}
			}
			code, out, calls := h.run(t, nil, "postinst", c.action)
			if diff := cmp.Diff(c.calls, calls); code != 0 || diff != "" || !strings.Contains(out, c.says) {
				t.Errorf("postinst exits with %d: %s\n(-want +got):\n%s", code, out, diff)
			}
			if h.has("run/gpushare.install") {
				t.Error("the next upgrade would be taken for an installation")
			}
		})
	}
}

// A version that cannot read the state is refused before anything changes.
func TestStateOfAnotherFormat(t *testing.T) {
	t.Parallel()
	state := func(format string) string { return `{"format":` + format + `,"generation":7,"sha256":"00"}` + "\n{}\n" }
	for _, c := range []struct {
		name, action string
		files        map[string]string
		refused      bool
	}{
		{"no state", "install", nil, false},
		{"this format", "upgrade", map[string]string{"var/lib/gpushare/state.json": state("2")}, false},
		{"a newer one", "upgrade", map[string]string{"var/lib/gpushare/state.json": state("3")}, true},
		{"a newer one, by rpm", "2", map[string]string{"var/lib/gpushare/state.json": state("12")}, true},
		{"an older one", "install", map[string]string{"var/lib/gpushare/state.json": state("1")}, true},
		{"in another directory", "upgrade", map[string]string{"etc/gpushare/gpushared.yaml": "state_dir: \"/srv/state\"\n", "srv/state/state.json": state("3")}, true},
		{"after a failed upgrade", "abort-upgrade", map[string]string{"var/lib/gpushare/state.json": state("3")}, false},
		{"damaged, which the daemon reports", "upgrade", map[string]string{"var/lib/gpushare/state.json": "\x00"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, c.files)
			code, out, _ := h.run(t, nil, "preinst", c.action)
			if refused := code != 0; refused != c.refused || refused != strings.Contains(out, "gpushare unmanage") {
				t.Errorf("preinst %s exits with %d: %s", c.action, code, out)
			}
		})
	}
}

// A host that is upgraded has its state elsewhere, and its administrator may have added to the profile before.
func TestProfileOfOtherPaths(t *testing.T) {
	t.Parallel()
	const added = "etc/apparmor.d/local/gpushared"
	for name, c := range map[string]struct{ settings, before, want string }{
		"the defaults":    {"log_level: info\n#state_dir: /var/lib/gpushare\n", "", ""},
		"other paths":     {"state_dir: \"/srv/gpu state/\" # a disk of its own\nmps_control: /opt/mps-control\n", "", "\"/srv/gpu state/{,**}\" rwkl,\n\"/opt/mps-control\" mrix,\n"},
		"nothing is lost": {"state_dir: /srv/state\n", "/opt/x r,\n", "/opt/x r,\n"},
		"off is no path":  {"getent: off\n", "", ""},
	} {
		files := running(map[string]string{apparmor: "Y\n", daemon: "", "etc/gpushare/gpushared.yaml": c.settings})
		if c.before != "" {
			files[added] = c.before
		}
		h := newHost(t, files)
		code, out, _ := h.run(t, nil, "postinst", "configure")
		got, err := os.ReadFile(filepath.Join(h.root, added))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		if err != nil || code != 0 || string(got) != c.want {
			t.Errorf("%s: postinst exits with %d, added %q, %v: %s", name, code, got, err, out)
		}
	}
}

// What the daemon reads next to a file of the settings, or because that file names it, is elsewhere too.
func TestProfileOfFilesThatFilesName(t *testing.T) {
	t.Parallel()
	h := newHost(t, running(map[string]string{
		apparmor:                      "Y\n",
		daemon:                        "",
		"etc/gpushare/gpushared.yaml": "spec_file: /srv/gpushare/node.yaml\nmetrics_web_config: '/srv/metrics/web.yaml' # TLS\n",
		"srv/metrics/web.yaml": "# cert_file: /no\ntls_server_config:\n  cert_file: live/cert.pem\n  key_file: \"/opt/keys/key.pem\"\n  client_ca_file: /srv/ca.pem # of the site\n" +
			"  client_auth_type: RequireAndVerifyClientCert\n",
		"srv/metrics/archive/cert1.pem": "",
		"srv/metrics/live/x":            "",
	}))
	if err := os.Symlink("../archive/cert1.pem", filepath.Join(h.root, "srv/metrics/live/cert.pem")); err != nil {
		t.Fatal(err)
	}
	code, out, _ := h.run(t, nil, "postinst", "configure")
	got, err := os.ReadFile(filepath.Join(h.root, "etc/apparmor.d/local/gpushared"))
	want := []string{
		`"/srv/gpushare/node.yaml" r,`, `"/srv/metrics/web.yaml" r,`, `"/srv/gpushare/conf.d/{,**}" r,`, `"/srv/metrics/live/cert.pem" r,`,
		`"/srv/metrics/archive/cert1.pem" r,`, `"/srv/metrics/archive/*" r,`, `"/opt/keys/key.pem" r,`, `"/srv/ca.pem" r,`, "",
	}
	if diff := cmp.Diff(want, strings.Split(string(got), "\n")); err != nil || code != 0 || diff != "" {
		t.Errorf("postinst exits with %d, %v: %s\n(-want +got):\n%s", code, err, out, diff)
	}
}

// Without systemd the daemon starts its programs itself, which its profile does not allow: it is neither loaded nor left to the next boot.
func TestProfileOfTheDaemonIsForSystemd(t *testing.T) {
	t.Parallel()
	const packaged, administrators = "../gpushared", "/etc/apparmor.d/gpushared"
	others := profiles("--replace")[:2]
	removed := append(slices.Clone(others), "apparmor_parser --remove /etc/apparmor.d/gpushared")
	for _, c := range []struct {
		name         string
		files        map[string]string
		init         string // what /sbin/init is a link to
		before, want string // what the link that disables the profile leads to
		calls        []string
	}{
		{"another init", map[string]string{"sbin/init": ""}, "", "", packaged, removed},
		{"another init is a link", nil, "openrc-init", "", packaged, removed},
		{"the next upgrade", map[string]string{"sbin/init": ""}, "", packaged, packaged, removed},
		{"an image that systemd will boot", nil, "../lib/systemd/systemd", "", "", others},
		{"an image without an init", nil, "", "", "", others},
		{"systemd", running(nil), "/lib/systemd/systemd", "", "", profiles("--replace")},
		{"systemd came later", running(nil), "/lib/systemd/systemd", packaged, "", profiles("--replace")},
		{"the administrator's", running(nil), "/lib/systemd/systemd", administrators, administrators, profiles("--replace")},
	} {
		h := newHost(t, c.files)
		for name, text := range map[string]string{apparmor: "Y\n", nvml: "", thaw: "", daemon: "", "sbin/openrc-init": "", "usr/bin/gpushare": "#!/bin/sh\n"} {
			h.write(t, filepath.Join(h.root, name), text)
		}
		link := filepath.Join(h.root, "etc/apparmor.d/disable/gpushared")
		if c.before != "" {
			h.write(t, filepath.Join(filepath.Dir(link), "other"), "")
		}
		for name, to := range map[string]string{link: c.before, filepath.Join(h.root, "sbin/init"): c.init} {
			if to == "" {
				continue
			}
			if err := os.Symlink(to, name); err != nil {
				t.Fatal(err)
			}
		}
		code, out, calls := h.run(t, nil, "postinst", "configure")
		calls = slices.DeleteFunc(calls, func(c string) bool { return !strings.HasPrefix(c, "apparmor_parser") })
		got, _ := os.Readlink(link) // Without a link it is empty.
		if diff := cmp.Diff(c.calls, calls); code != 0 || got != c.want || diff != "" {
			t.Errorf("%s: postinst exits with %d, the link leads to %q: %s\n(-want +got):\n%s", c.name, code, got, out, diff)
		}
		code, out, _ = h.run(t, nil, "prerm", "remove")
		if _, err := os.Lstat(link); code != 0 || (err == nil) != (c.want == administrators) {
			t.Errorf("%s: prerm exits with %d, the link: %v: %s", c.name, code, err, out)
		}
	}
}

// The kernel's record of the processes of leases is one of the restrictions that a removal may keep.
func TestRecordIsKeptWithTheRestrictions(t *testing.T) {
	t.Parallel()
	const record = "sys/fs/bpf/gpushare/descent"
	for _, c := range []struct {
		env  []string
		kept bool
	}{{nil, false}, {[]string{"GPUSHARE_KEEP_ISOLATION=1"}, true}} {
		h := newHost(t, running(map[string]string{record: "", "usr/bin/gpushare": "#!/bin/sh\n"}))
		if code, out, _ := h.run(t, c.env, "prerm", "remove"); code != 0 || h.has(record) != c.kept {
			t.Errorf("with %q prerm exits with %d, record kept: %v: %s", c.env, code, h.has(record), out)
		}
	}
}

// A profile does not outlive its program, and an upgrade keeps it in force.
func TestProfilesAreUnloaded(t *testing.T) {
	t.Parallel()
	for action, want := range map[string][]string{"remove": profiles("--remove"), "0": profiles("--remove"), "upgrade": nil, "1": nil} {
		h := newHost(t, running(map[string]string{apparmor: "Y\n", nvml: "", thaw: "", daemon: "", "usr/bin/gpushare": "#!/bin/sh\n"}))
		code, out, calls := h.run(t, nil, "prerm", action)
		calls = slices.DeleteFunc(calls, func(c string) bool { return !strings.HasPrefix(c, "apparmor_parser") })
		if code != 0 || !slices.Equal(calls, want) {
			t.Errorf("prerm %s exits with %d, calls %q: %s", action, code, calls, out)
		}
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	const state, settings = "var/lib/gpushare/state.json", "etc/gpushare/node.yaml"
	for _, c := range []struct {
		name  string
		env   []string
		says  string
		state bool // it is kept
	}{
		{"the state is removed", nil, "", false},
		{"restrictions are kept", []string{"GPUSHARE_KEEP_ISOLATION=1"}, "gpushare unmanage", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, running(map[string]string{state: "{}", settings: "", "run/gpushare/x": "", "usr/bin/gpushare": "#!/bin/sh\n"}))
			if code, out, _ := h.run(t, c.env, "prerm", "remove"); code != 0 {
				t.Fatalf("prerm exits with %d: %s", code, out)
			}
			if code, out, calls := h.run(t, nil, "postrm", "remove"); code != 0 || !cmp.Equal(calls, []string{reload}) || !h.has(state) {
				t.Errorf("postrm remove exits with %d, calls %q: %s", code, calls, out)
			}
			code, out, _ := h.run(t, nil, "postrm", "purge")
			if code != 0 || h.has(state) != c.state || !strings.Contains(out, c.says) {
				t.Errorf("postrm purge exits with %d, state kept: %v: %s", code, h.has(state), out)
			}
			if !h.has(settings) {
				t.Error("a file of the administrator was removed")
			}
			h.run(t, nil, "preinst", "install")
			if code, out, _ := h.run(t, nil, "postinst", "configure"); code != 0 || h.has("var/lib/gpushare/restrictions-kept") {
				t.Errorf("postinst exits with %d: %s", code, out)
			}
		})
	}
}

// A removal that is not refused is silent: what it changed itself is no news to an administrator.
func TestRemovalIsSilent(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"remove", "0"} {
		h := newHost(t, running(map[string]string{"usr/bin/gpushare": "#!/bin/sh\n"}))
		for _, script := range []string{"prerm", "postrm"} {
			if code, out, calls := h.run(t, nil, script, action); code != 0 || out != "" {
				t.Errorf("%s %s exits with %d, calls %q, and prints:\n%s", script, action, code, calls, out)
			}
		}
	}
}
