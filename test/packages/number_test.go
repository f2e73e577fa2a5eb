package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// tree is a repository with one commit that has the scripts, and runs commands in it.
func tree(t *testing.T) (in func(argv ...string) string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing")
	}
	dir := t.TempDir()
	for _, name := range []string{"packaging/version.sh", "packaging/number.sh", "internal/version/version.go"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := programs.Write(filepath.Join(dir, name), readAll(t, "../../"+name)); err != nil {
			t.Fatal(err)
		}
	}
	in = func(argv ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Dir = dir
		cmd.Env = append(
			os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_AUTHOR_NAME=x",
			"GIT_AUTHOR_EMAIL=x", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x", "SOURCE_DATE_EPOCH=1767323045",
		)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v", argv, err)
		}
		return strings.TrimSpace(string(out))
	}
	in("git", "init", "-q")
	in("git", "add", ".")
	in("git", "commit", "-q", "-m", "x")
	return in
}

// A tree that git refuses, because it belongs to another user, is no release: what it is is not known.
func TestVersionOfARefusedTree(t *testing.T) {
	t.Parallel()
	in := tree(t)
	got := in("env", "GIT_TEST_ASSUME_DIFFERENT_OWNER=1", "sh", "packaging/version.sh")
	if !strings.HasSuffix(got, "+unknown") || !semantic.MatchString(got) {
		t.Errorf("the version is %s", got)
	}
	if sources := in(
		"sh",
		"-c",
		"mkdir sources && cp -r packaging internal sources && sh sources/packaging/version.sh",
	); strings.Contains(
		sources,
		"+",
	) {
		t.Errorf("sources without a history, in a directory with another one, have the version %s", sources)
	}
}

// Packages are ordered as their commits are: candidates and builds before the tag of a version are older than the version, builds after
// it are newer.
func TestOrderOfPackages(t *testing.T) {
	t.Parallel()
	in := tree(t)
	number := func(version string) string { return in("sh", "packaging/number.sh", version) }
	order := []string{
		number("fd01234"),        // without any tag
		number("v0.9.0-rc1+aaa"), // before the tag v0.9.0-rc1
		number("v0.9.0-rc1"),
	}
	in("git", "tag", "v0.9.0-rc1")
	in("git", "commit", "-q", "--allow-empty", "-m", "y")
	order = append(order, number("v0.9.0-rc1+fff"), number("v0.9.0-rc2"), number("v0.9.0+fff.dirty"), number("v0.9.0"))
	in("git", "tag", "v0.9.0")
	order = append(order, number("v0.9.0+000"), number("v0.9.1-beta.1"), number("v0.9.1+aaa"), number("v0.9.1"), number("v0.9.1-2-gabc"))
	for i := 1; i < len(order); i++ {
		older, newer := order[i-1], order[i]
		if _, err := exec.LookPath("dpkg"); err == nil {
			if exec.CommandContext(t.Context(), "dpkg", "--compare-versions", older, "lt", newer).Run() != nil {
				t.Errorf("dpkg: %s is not older than %s", older, newer)
			}
		}
		if _, err := exec.LookPath("rpm"); err == nil {
			if out, err := exec.CommandContext(
				t.Context(), "rpm", "--eval", `%{lua:print(rpm.vercmp("`+older+`", "`+newer+`"))}`,
			).Output(); err != nil || strings.TrimSpace(string(out)) != "-1" {
				t.Errorf("rpm: %s is not older than %s: %s%v", older, newer, out, err)
			}
		}
	}
	t.Log(order)
}
