package gpushare_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// hostWide are texts with which a test reads or changes what it shares with all that runs on the host: tests of other packages run at the
// same time, as root and as an ordinary user, and so do other programs.
var hostWide = map[string]*regexp.Regexp{
	"the mounts":                     regexp.MustCompile(`^mountinfo$|^/proc/.*/?(mountinfo|mounts)$`),
	"all processes":                  regexp.MustCompile(`^/proc/(\[0-9\]|\*)|^(pgrep|pkill|killall|pidof)$`),
	"all sockets":                    regexp.MustCompile(`^/proc/net/`),
	"the kernel's settings, written": regexp.MustCompile(`^/proc/sys/kernel/ns_last_pid$`),
	"a port":                         regexp.MustCompile(`^(127\.0\.0\.1|0\.0\.0\.0|localhost|\[::1?\])?:[1-9][0-9]{2,4}$`),
	"an abstract socket":             regexp.MustCompile(`^[@\x00](gpushare|gpusim|test)`),
	"a file of the host":             regexp.MustCompile(`^/(run|tmp|dev/shm|var/tmp)/gpushare-`),
}

// umask is set by a call, also to read it: all threads have it meanwhile.
const umask = "the mask of new files"

// hostWideFiles says for each file of tests that has such a text why no other program disturbs it.
var hostWideFiles = map[string]map[string]string{
	"the mounts": {
		"gpusim/hostcgroups.go":                   "it finds the first one of a kind",
		"internal/kernel/descent/visible_test.go": "in a mount namespace of its own",
		"test/node/descent_test.go":               "lines with the directory of its node",
		"test/node/survive_test.go":               "it finds the first one of a kind",
		"test/slurm/slurm_test.go":                "it finds the first one of a kind",
	},
	"all processes": {
		"test/node/crash_test.go":       "children of its daemon",
		"test/node/front_test.go":       "those with the directory of its node",
		"test/node/maintenance_test.go": "it asks whether each may be read",
		"test/node/mpsrandom_test.go":   "those with the directory of its node",
		"test/node/mpsrecovery_test.go": "those with the directory of its node",
		"test/slurm/slurm_test.go":      "those whose working directory is its own",
	},
	"all sockets":                    {"test/node/mpsrandom_test.go": "those with the directory of its node"},
	"the kernel's settings, written": {"internal/kernel/procfs/procfstest/reusedpid.go": "in a pid namespace of its own"},
	"a port":                         {},
	"an abstract socket":             {},
	"a file of the host":             {"test/node/prolog_test.go": "in a mount namespace with a /run of its own"},
	umask: {
		"internal/cli/umask_test.go":       "no other test of the package runs meanwhile",
		"internal/durable/replace_test.go": "no other test of the package runs meanwhile",
	},
}

// hostWideIn returns what a file takes of the host, with where it does.
func hostWideIn(file *ast.File) map[string]token.Pos {
	found := map[string]token.Pos{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			text, err := strconv.Unquote(n.Value)
			if n.Kind != token.STRING || err != nil {
				return true
			}
			for what, pattern := range hostWide {
				if pattern.MatchString(text) {
					found[what] = n.Pos()
				}
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Umask" {
				if p, ok := f.X.(*ast.Ident); ok && (p.Name == "syscall" || p.Name == "unix") {
					found[umask] = n.Pos()
				}
			}
		}
		return true
	})
	return found
}

// isTest reports whether only tests use a file.
func isTest(file string) bool {
	return strings.HasSuffix(file, "_test.go") || testOnly[path.Base(path.Dir(file))] || strings.HasPrefix(file, "test/") ||
		strings.HasPrefix(file, "gpusim/")
}

// A test that takes for its own what is the host's fails once in a hundred runs, through another one. Where it reads or changes such
// things, the table says what keeps others out.
func TestNoTestHasTheHostForItself(t *testing.T) {
	t.Parallel()
	used, set := map[string]bool{}, token.NewFileSet()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "build", "bin", "testdata"}, file):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || !isTest(file) || file == "architecturehost_test.go":
			return nil
		}
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for what, at := range hostWideIn(parsed) {
			used[what+" in "+file] = true
			if hostWideFiles[what][file] == "" {
				t.Errorf(
					"%s: it uses %s of the whole host: give it one of its own, or say in hostWideFiles what keeps others out",
					set.Position(at),
					what,
				)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, files := range hostWideFiles {
		for file := range files {
			if !used[what+" in "+file] {
				t.Errorf("%s does not use %s any more: remove it from hostWideFiles", file, what)
			}
		}
	}
}

func TestHostWideIsFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`os.ReadFile("/proc/self/mountinfo")`:                "the mounts",
		`os.ReadFile("/proc/mounts")`:                        "the mounts",
		`read("cgroup", "mountinfo")`:                        "the mounts",
		`f("36 35 0:30 / /mounts rw")`:                       "",
		`filepath.Glob("/proc/[0-9]*/stat")`:                 "all processes",
		`exec.Command("pkill", "x")`:                         "all processes",
		`os.ReadFile("/proc/net/unix")`:                      "all sockets",
		`os.WriteFile("/proc/sys/kernel/ns_last_pid", b, 0)`: "the kernel's settings, written",
		`os.ReadFile("/proc/sys/kernel/pid_max")`:            "",
		`net.Listen("tcp", "127.0.0.1:9100")`:                "a port",
		`net.Listen("tcp", ":9100")`:                         "a port",
		`net.Listen("tcp", "127.0.0.1:0")`:                   "",
		`net.Listen("unix", "@gpushare")`:                    "an abstract socket",
		`os.Stat("/run/gpushare-prolog")`:                    "a file of the host",
		`syscall.Umask(0)`:                                   umask,
		`procfstest.Umask(t)`:                                "",
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\nvar _ = "+text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(hostWideIn(parsed))), ", "); got != want {
			t.Errorf("%s: found %q, want %q", text, got, want)
		}
	}
}
