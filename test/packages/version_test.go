package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/version"
	"github.com/gpushare/gpushare/test/programs"
)

var (
	semantic = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	released = regexp.MustCompile(`(?m)^## (v\S+)`)
)

// The version is written in one place. What is built from a commit adds that, a release does not, and the changes describe it.
func TestVersion(t *testing.T) {
	t.Parallel()
	if !semantic.MatchString(version.Number) || strings.Contains(version.Number, "+") {
		t.Errorf("%q is no version of a release", version.Number)
	}
	changes, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if m := released.FindSubmatch(changes); m == nil || string(m[1]) != version.Number {
		t.Errorf("CHANGELOG.md begins with %q, and the version is %s", m, version.Number)
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing")
	}
	dir := t.TempDir()
	for _, name := range []string{"packaging/version.sh", "internal/version/version.go"} {
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := programs.Write(filepath.Join(dir, name), text); err != nil {
			t.Fatal(err)
		}
	}
	in := func(argv ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Dir = dir
		cmd.Env = append(
			os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_AUTHOR_NAME=x",
			"GIT_AUTHOR_EMAIL=x", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x",
		)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v", argv, err)
		}
		return strings.TrimSpace(string(out))
	}
	number := func() string { return in("sh", "packaging/version.sh") }
	if got := number(); got != version.Number {
		t.Errorf("sources without a history have the version %s, want %s", got, version.Number)
	}
	in("git", "init", "-q")
	in("git", "add", ".")
	in("git", "commit", "-q", "-m", "x")
	if got, want := number(), version.Number+"+"+in("git", "rev-parse", "--short=8", "HEAD"); got != want || !semantic.MatchString(got) {
		t.Errorf("a commit has the version %s, want %s", got, want)
	}
	in("git", "tag", version.Number)
	if got := number(); got != version.Number {
		t.Errorf("the release has the version %s, want %s", got, version.Number)
	}
	if err := programs.Write(filepath.Join(dir, "packaging/version.sh"), readAll(t, "../../packaging/version.sh")+"\n"); err != nil {
		t.Fatal(err)
	}
	if got := number(); !strings.HasPrefix(got, version.Number+"+") || !strings.HasSuffix(got, ".dirty") || !semantic.MatchString(got) {
		t.Errorf("changed sources have the version %s", got)
	}
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every program prints the version that was built in.
func TestEveryProgramHasTheVersion(t *testing.T) {
	t.Parallel()
	for program, args := range map[string]string{
		"gpushare": "--version", "gpushared": "--version", "gpushare-nvml": "--version", "gpushare-start": "--version",
		"gpushare-cli": "--version", "gpushare-front": "--version", "gpushare-thaw": "--version", "gpushare-plot": "--version", "gpusim": "--version",
	} {
		path, err := filepath.Abs("../../bin/" + program)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Skipf("%s is missing: make build", path)
		}
		out, err := exec.CommandContext(t.Context(), path, args).CombinedOutput()
		if err != nil || !strings.Contains(string(out), version.Number) {
			t.Errorf("%s %s prints %q: %v", program, args, out, err)
		}
	}
}
