//go:build tools

package tools

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// output runs a program in the root of the repository.
func output(t *testing.T, env []string, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", argv, err, out, stderr.Bytes())
	}
	return string(out)
}

// packagesIn returns the paths of the deb and the rpm in a directory.
func packagesIn(t *testing.T, dir string) (deb, rpm string) {
	t.Helper()
	for kind, path := range map[string]*string{"deb": &deb, "rpm": &rpm} {
		found, err := filepath.Glob(filepath.Join(dir, "*."+kind))
		if err != nil || len(found) != 1 {
			t.Fatalf("package.sh wrote %q: %v", found, err)
		}
		*path = found[0]
	}
	return deb, rpm
}

// TestPackages reads the packages with dpkg and rpm. They have what make install installs. TestRelease builds those of another version
// twice, and compares their bytes.
func TestPackages(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"dpkg-deb", "rpm", "groff", "readelf"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: apt-get install dpkg rpm groff-base binutils", tool)
		}
	}
	built := t.TempDir()
	output(t, nil, "packaging/package.sh", "v1.2-3-gabcdef0", "bin", built)
	deb, rpm := packagesIn(t, built)

	root := t.TempDir()
	output(t, nil, "packaging/install.sh", root, "/usr", "bin")
	installed := strings.Split(
		strings.TrimSpace(output(t, nil, "sh", "-c", "cd "+root+" && find . -type f -printf '%M root root /%P\\n'")), "\n",
	)
	installed = slices.DeleteFunc(installed, func(l string) bool { return strings.HasSuffix(l, "/usr/share/gpushare/installed") })
	slices.Sort(installed)
	if len(installed) < 80 {
		t.Errorf("make install installs %d files", len(installed))
	}
	// Fields of each line: permissions, owner, group, path.
	inRPM := strings.Split(
		strings.TrimSpace(
			output(t, nil, "rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]", rpm),
		),
		"\n",
	)
	inRPM = slices.DeleteFunc(inRPM, func(l string) bool { return strings.HasPrefix(l, "d") })
	slices.Sort(inRPM)
	if diff := cmp.Diff(installed, inRPM); diff != "" {
		t.Errorf("files (-make install +rpm):\n%s", diff)
	}
	var inDeb []string
	for _, line := range strings.Split(strings.TrimSpace(output(t, nil, "dpkg-deb", "-c", deb)), "\n") {
		f := strings.Fields(line)
		if len(f) != 6 || strings.HasPrefix(f[0], "d") {
			continue
		}
		path := strings.Replace(strings.TrimPrefix(f[5], "."), "vendor-completions", "site-functions", 1)
		inDeb = append(inDeb, f[0]+" "+strings.Replace(f[1], "/", " ", 1)+" "+path)
	}
	// What only Debian's tools read is in the deb alone.
	for _, name := range []string{"/usr/share/doc/gpushare/changelog.gz", "/usr/share/lintian/overrides/gpushare"} {
		i := slices.IndexFunc(inDeb, func(l string) bool { return strings.HasSuffix(l, " "+name) })
		if i < 0 {
			t.Fatalf("the deb has no %s", name)
		}
		inDeb = slices.Delete(inDeb, i, i+1)
	}
	slices.Sort(inDeb)
	if diff := cmp.Diff(installed, inDeb); diff != "" {
		t.Errorf("files (-make install +deb):\n%s", diff)
	}
	t.Run("control", func(t *testing.T) { packageManager(t, deb, rpm) })
	t.Run("man", func(t *testing.T) { manualsRender(t, root) })
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// packageManager tests what a package manager does with the packages.
func packageManager(t *testing.T, deb, rpm string) {
	if got := output(t, nil, "dpkg-deb", "-f", deb, "Version"); got != "1.2+3.gabcdef0\n" {
		t.Errorf("the version of the deb is %q", got)
	}
	if got := output(t, nil, "rpm", "-qp", "--qf", "%{VERSION}-%{RELEASE}", rpm); got != "1.2+3.gabcdef0-1" {
		t.Errorf("the version of the rpm is %q", got)
	}
	const settings = "/etc/gpushare/gpushared.yaml\n"
	dir := t.TempDir()
	output(t, nil, "dpkg-deb", "-e", deb, dir)
	if got := string(read(t, filepath.Join(dir, "conffiles"))); got != settings {
		t.Errorf("the settings of the deb are %q", got)
	}
	if got := output(t, nil, "rpm", "-qpc", rpm); got != settings {
		t.Errorf("the settings of the rpm are %q", got)
	}
	library := regexp.MustCompile(`(libc6 \(|glibc )>= 2\.[0-9]+`)
	if got := output(t, nil, "dpkg-deb", "-f", deb, "Depends"); !library.MatchString(got) || !strings.Contains(got, "systemd") {
		t.Errorf("the deb depends on %q", got)
	}
	if got := output(t, nil, "rpm", "-qpR", rpm); !library.MatchString(got) || !strings.Contains(got, "systemd") {
		t.Errorf("the rpm requires %q", got)
	}
	scripts := output(t, nil, "rpm", "-qp", "--scripts", rpm)
	for _, name := range []string{"preinst", "postinst", "prerm", "postrm"} {
		want := string(read(t, "../../packaging/scripts/"+name))
		if name == "preinst" {
			want = regexp.MustCompile(`@FORMAT@`).ReplaceAllString(want, "2")
		}
		if got := string(read(t, filepath.Join(dir, name))); got != want {
			t.Errorf("%s of the deb is\n%s", name, got)
		}
		if !strings.Contains(scripts, strings.TrimSpace(want)) {
			t.Errorf("the scripts of the rpm have no %s:\n%s", name, scripts)
		}
	}
	// As both package managers compare versions, each is newer than the one before it.
	order := []string{"0~20260102030405.abcdef0", "1.2~rc1", "1.2", "1.2+3.gabcdef0", "1.3"}
	for i, newer := range order[1:] {
		output(t, nil, "dpkg", "--compare-versions", order[i], "lt", newer)
		if got := output(t, nil, "rpm", "--eval", "%{lua: print(rpm.vercmp('"+order[i]+"', '"+newer+"'))}"); got != "-1\n" {
			t.Errorf("rpm compares %s with %s: %s", order[i], newer, got)
		}
	}
}

// manualsRender tests that groff has nothing to say about the man pages, and that they name every flag of their program.
func manualsRender(t *testing.T, root string) {
	files, err := filepath.Glob(filepath.Join(root, "usr/share/man/man?/*.gz"))
	if err != nil || len(files) < 50 {
		t.Fatalf("there are %d man pages: %v", len(files), err)
	}
	for _, file := range files {
		if got := output(t, nil, "sh", "-c", `zcat "$1" | groff -K utf8 -ww -man -t -T utf8 -z 2>&1`, "sh", file); got != "" {
			t.Errorf("%s: %s", filepath.Base(file), got)
		}
	}
	for _, program := range []string{"gpushared", "gpushare-thaw"} {
		text := output(
			t,
			nil,
			"sh",
			"-c",
			`zcat "$1" | groff -K utf8 -man -t -T utf8 -P -cbou`,
			"sh",
			filepath.Join(root, "usr/share/man/man8", program+".8.gz"),
		)
		usage := output(t, nil, "sh", "-c", `"$1" -h 2>&1 || true`, "sh", "bin/"+program)
		flags := regexp.MustCompile(`(?m)^  -[a-z-]+`).FindAllString(usage, -1)
		if len(flags) < 2 {
			t.Errorf("%s has the flags %q: %s", program, flags, usage)
		}
		for _, flag := range flags {
			if !strings.Contains(text, "\n       "+strings.TrimSpace(flag)) {
				t.Errorf("%s(8) does not explain %s", program, flag)
			}
		}
	}
}
