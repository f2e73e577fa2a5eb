package readme

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// used are the programs of the system that need.sh uses.
var used = []string{"sh", "basename", "dirname", "head", "sed", "sort"}

// Its own version is VERSION. It loads the version in go.mod, as Go from 1.21 on does, unless it may not.
const goProgram = `#!/bin/sh
case "$1 ${2:-}" in
'env GOMODCACHE') echo "$HOME/modules" ;;
'env GOPROXY') echo https://proxy.example ;;
'version ')
	case VERSION:${GOTOOLCHAIN:-DEFAULT} in
	1.19.*:* | *:local) echo go version goVERSION linux/amd64 ;;
	*)
		echo 'go: downloading' >&2
		[ ! -e "$HOME/refused" ] || exit 1
		echo go version goWANTED linux/amd64
		;;
	esac
	;;
esac
`

const (
	bookworm = "PRETTY_NAME='Debian GNU/Linux 12 (bookworm)'\nID=debian\nVERSION_CODENAME=bookworm\n"
	trixie   = "PRETTY_NAME='Debian GNU/Linux 13 (trixie)'\nID=debian\nVERSION_CODENAME=trixie\n"
	noble    = "PRETTY_NAME='Ubuntu 24.04 LTS'\nID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n"
	fedora   = "PRETTY_NAME='Fedora Linux'\nID=fedora\n"
	other    = "PRETTY_NAME='Some Linux'\nID=some\n"
)

// required is the version in go.mod.
func required(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^go ([0-9.]+)$`).FindSubmatch(b)
	if m == nil {
		t.Fatal("go.mod has no version of Go")
	}
	return string(m[1])
}

// What is missing decides what it prints, and on which system: the lines behind four spaces are commands, and all of them are listed.
func TestNeedSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	const (
		backports12 = "echo 'deb https://mirror.example/debian bookworm-backports main' >/etc/apt/sources.list.d/bookworm-backports.list"
		backports13 = "echo 'deb https://mirror.example/debian trixie-backports main' >/etc/apt/sources.list.d/trixie-backports.list"
		sources     = "# http://comment.example/debian\nTypes: deb\nURIs: https://mirror.example/debian-security\n\nURIs: https://mirror.example/debian\n"
		list        = "deb http://mirror.example/debian-security bookworm-security main\ndeb [arch=amd64] http://mirror.example/old bookworm main\n"
		update      = "apt-get update"
		gcc         = "#!/bin/sh\nexit 0\n"
		noHeaders   = "#!/bin/sh\nexit 1\n"
	)
	want := required(t)
	// A result of another script is then no cached one of this.
	if _, err := os.Stat("../../packaging/need.sh"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		system    string
		version   string // of Go; empty: there is none
		toolchain string // what GOTOOLCHAIN is without the variable; empty: auto
		gcc       string
		refused   bool // the proxy of modules
		mistrust  bool // no certificates
		list      bool // the sources of apt have the format of one line
		says      []string
		commands  []string
	}{
		{name: "all is there", system: bookworm, version: want, gcc: gcc},
		{name: "a newer Go", system: trixie, version: "1.127.4", toolchain: "local", gcc: gcc},
		{name: "Go 1.22 loads the other", system: noble, version: "1.22.2", gcc: gcc},
		{
			name: "nothing on Debian 12", system: bookworm,
			says:     []string{"go is missing", "gcc is missing", "On Debian GNU/Linux 12 (bookworm) root"},
			commands: []string{backports12, update, "apt-get install -y gcc libc6-dev", "apt-get install -y -t bookworm-backports golang-go"},
		},
		{
			name: "nothing on Debian 13", system: trixie, says: []string{"go is missing", "gcc is missing"},
			commands: []string{update, "apt-get install -y gcc libc6-dev golang-go"},
		},
		{
			name: "nothing on Ubuntu", system: noble, says: []string{"go is missing", "gcc is missing"},
			commands: []string{update, "apt-get install -y gcc libc6-dev golang-go"},
		},
		{
			name: "nothing on Fedora", system: fedora, says: []string{"go is missing", "gcc is missing"},
			commands: []string{"dnf install -y gcc glibc-devel golang"},
		},
		{
			name: "nothing on another system", system: other,
			says: []string{"go is missing", "gcc is missing", "package manager of Some Linux", "gcc libc6-dev", want + " itself is at https://go.dev/dl"},
		},
		{name: "nothing on a system without a name", says: []string{"go is missing", "package manager of this system", "https://go.dev/dl"}},
		{
			name: "sources of apt in lines", system: bookworm, gcc: gcc, list: true, says: []string{"go is missing"},
			commands: []string{
				"echo 'deb http://mirror.example/old bookworm-backports main' >/etc/apt/sources.list.d/bookworm-backports.list",
				update, "apt-get install -y -t bookworm-backports golang-go",
			},
		},
		{
			name: "no Go on Debian 12", system: bookworm, gcc: gcc, says: []string{"go is missing"},
			commands: []string{backports12, update, "apt-get install -y -t bookworm-backports golang-go"},
		},
		{
			name: "Go 1.19 on Debian 12", system: bookworm, version: "1.19.8", gcc: gcc,
			says:     []string{"go is Go 1.19.8: Go " + want + " is needed, or one from 1.21 on"},
			commands: []string{backports12, update, "apt-get install -y -t bookworm-backports golang-go"},
		},
		{
			name: "an old Go on Debian 13", system: trixie, version: "1.19.8", gcc: gcc, says: []string{"go is Go 1.19.8"},
			commands: []string{backports13, update, "apt-get install -y -t trixie-backports golang-go"},
		},
		{name: "an old Go on Ubuntu", system: noble, version: "1.19.8", gcc: gcc, says: []string{"go is Go 1.19.8", "https://go.dev/dl"}},
		{
			name: "Go 1.24 may load no other", system: trixie, version: "1.24.4", toolchain: "local", gcc: gcc,
			says:     []string{"go is Go 1.24.4, and GOTOOLCHAIN forbids it to load Go " + want},
			commands: []string{"export GOTOOLCHAIN=auto"},
		},
		{
			name: "the proxy refuses on Debian 12", system: bookworm, version: "1.23.5", gcc: gcc, refused: true,
			says: []string{"go: downloading", "could not load Go " + want + " from https://proxy.example", "https://go.dev/dl"},
		},
		{
			name: "the proxy refuses on Debian 13", system: trixie, version: "1.24.4", gcc: gcc, refused: true,
			says:     []string{"could not load Go " + want},
			commands: []string{backports13, update, "apt-get install -y -t trixie-backports golang-go"},
		},
		{
			name: "no gcc", system: trixie, version: want, says: []string{"gcc is missing"},
			commands: []string{update, "apt-get install -y gcc libc6-dev"},
		},
		{
			name: "no headers", system: bookworm, version: want, gcc: noHeaders, says: []string{"C library's headers are missing"},
			commands: []string{update, "apt-get install -y libc6-dev"},
		},
		{
			name: "no headers on Fedora", system: fedora, version: want, gcc: noHeaders, says: []string{"C library's headers are missing"},
			commands: []string{"dnf install -y glibc-devel"},
		},
		{
			name: "no certificates", system: noble, version: "1.22.2", gcc: gcc, mistrust: true,
			says: []string{"certificates of authorities are missing"}, commands: []string{update, "apt-get install -y ca-certificates"},
		},
		{
			name: "nothing, and no certificates", system: bookworm, mistrust: true,
			says: []string{"go is missing", "gcc is missing", "certificates of authorities are missing"},
			commands: []string{
				backports12, update, "apt-get install -y gcc libc6-dev ca-certificates", "apt-get install -y -t bookworm-backports golang-go",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bin, home := t.TempDir(), t.TempDir()
			for _, tool := range used {
				at, err := exec.LookPath(tool)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(at, filepath.Join(bin, tool)); err != nil {
					t.Fatal(err)
				}
			}
			write := func(file, text string) {
				t.Helper()
				if err := programs.Write(file, text); err != nil {
					t.Fatal(err)
				}
			}
			apt := t.TempDir()
			if err := os.Mkdir(filepath.Join(apt, "sources.list.d"), 0o755); err != nil {
				t.Fatal(err)
			}
			if c.list {
				write(filepath.Join(apt, "sources.list"), list)
			} else {
				write(filepath.Join(apt, "sources.list.d/debian.sources"), sources)
			}
			if c.version != "" {
				write(filepath.Join(bin, "go"), strings.NewReplacer(
					"VERSION", c.version, "WANTED", want, "DEFAULT", c.toolchain,
				).Replace(goProgram))
			}
			if c.gcc != "" {
				write(filepath.Join(bin, "gcc"), c.gcc)
			}
			if c.refused {
				write(filepath.Join(home, "refused"), "")
			}
			certificates, release := filepath.Join(home, "certificates"), filepath.Join(home, "os-release")
			if !c.mistrust {
				write(certificates, "some")
			}
			if c.system != "" {
				write(release, c.system)
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "sh"), "../../packaging/need.sh", "go", "gcc")
			cmd.Env = []string{"PATH=" + bin, "HOME=" + home, "OS_RELEASE=" + release, "SSL_CERT_FILE=" + certificates, "SOURCES=" + apt}
			b, err := cmd.CombinedOutput()
			out := string(b)
			if got, want := err != nil, len(c.says) > 0; got != want {
				t.Errorf("it fails: %v (%v), want %v", got, err, want)
			}
			for _, s := range c.says {
				if !strings.Contains(out, s) {
					t.Errorf("it does not say %q", s)
				}
			}
			var commands []string
			for line := range strings.Lines(out) {
				if rest, ok := strings.CutPrefix(line, "    "); ok {
					commands = append(commands, strings.TrimSuffix(rest, "\n"))
				}
			}
			if got, want := strings.Join(commands, "\n"), strings.Join(c.commands, "\n"); got != want {
				t.Errorf("its commands are\n%s\nwant\n%s", got, want)
			}
			if strings.Contains(out, "not found") || c.mistrust && strings.Contains(out, "downloading") || t.Failed() {
				t.Errorf("it prints:\n%s", out)
			}
		})
	}
}

// What distribution.sh does not know it names, before it changes anything.
func TestDistributionRefuses(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("distribution.sh"); err != nil { // As above.
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"no suite", nil, "there is no suite ''"},
		{"another suite", []string{"sid"}, "there is no suite 'sid': bookworm, trixie or noble"},
		{"another user", []string{"-u", "carol", "trixie"}, "there is no user 'carol': root, ann or bo"},
		{"another option", []string{"-x", "trixie"}, "usage: distribution.sh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), "bash", append([]string{"distribution.sh"}, c.args...)...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.says) {
				t.Errorf("it prints %q (%v), want %q", out, err, c.says)
			}
		})
	}
}
