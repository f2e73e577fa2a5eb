package docs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

const root = "../.."

// read reads a document, by its path in the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// block is the commands of one console block.
type block struct {
	line     int
	realHost bool
	commands []string
}

// blocks finds the console blocks. A block after a comment "real host" does not run on the virtual node.
func blocks(text string) []block {
	var out []block
	var in *block
	realHost := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case in != nil && line == "```":
			out = append(out, *in)
			in = nil
		case in != nil && strings.HasPrefix(line, "$ "):
			in.commands = append(in.commands, line[2:])
		case in != nil:
		case line == "<!-- real host -->":
			realHost = true
		case line == "```console":
			in = &block{line: i + 1, realHost: realHost}
			realHost = false
		case line != "":
			realHost = false
		}
	}
	return out
}

func TestBlocks(t *testing.T) {
	got := blocks("a\n```console\n$ gpushare status\nout\n```\n<!-- real host -->\n```console\n$ gpushare run\n```\n```sh\n$ no\n```\n")
	if len(got) != 2 || got[0].realHost || !got[1].realHost || len(got[0].commands) != 1 || got[0].commands[0] != "gpushare status" {
		t.Errorf("found %+v", got)
	}
}

// The commands of the README work, in order, on a virtual node.
func TestReadmeCommandsWork(t *testing.T) {
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"gpushared", "gpushare", "gpushare-nvml", "gpushare-thaw", "gpushare-start", "gpusim"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			t.Skipf("%s is missing: run 'make build' first", p)
		}
	}
	t.Chdir(root) // The paths in the README are relative to the root.
	// The driver does not hang here, so the default timeouts are used.
	n := &harness.Node{Bin: bin, File: "testdata/nodes/dgx-a100.yaml"}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if r := n.CLIIn(end, "version: v1\nnode: {enforce: on}\n", "apply", "-f", "-", "--force"); r.Code != 0 {
			t.Logf("the node was not emptied: %s", r.Err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, b := range blocks(string(text)) {
		if b.realHost {
			continue
		}
		for i, c := range b.commands {
			args := strings.Fields(c)
			if args[0] != "gpushare" {
				continue
			}
			ran++
			t.Run(fmt.Sprintf("line %d, command %d", b.line, i+1), func(t *testing.T) {
				if r := n.CLI(ctx, args[1:]...); r.Code != 0 {
					t.Errorf("%s\nexited with %d:\n%s%s", c, r.Code, r.Out, r.Err)
				}
			})
		}
	}
	if ran < 10 {
		t.Errorf("only %d commands were found in README.md: the reading is broken", ran)
	}
}

// The targets of links between pages exist.
func TestLinksLeadSomewhere(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, filepath.Join(root, "README.md"), filepath.Join(root, "ARCHITECTURE.md")) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(f), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", f, m[1])
			}
		}
	}
}

// The install lines of the README enable every unit that the preset enables.
func TestInstallLinesEnableEveryUnit(t *testing.T) {
	enabled := regexp.MustCompile(`(?m)^\$ systemctl enable --now (.*)$`).FindStringSubmatch(read(t, "docs/install.md"))
	if enabled == nil {
		t.Fatal("docs/install.md has no line '$ systemctl enable --now …'")
	}
	units := strings.Fields(enabled[1])
	for i, u := range units {
		if !strings.Contains(u, ".") {
			units[i] = u + ".service"
		}
	}
	preset := regexp.MustCompile(`(?m)^enable (\S+)$`).FindAllStringSubmatch(read(t, "packaging/preset/90-gpushare.preset"), -1)
	if len(preset) < 4 {
		t.Fatalf("only %d units were found in the preset", len(preset))
	}
	for _, m := range preset {
		if !slices.Contains(units, m[1]) {
			t.Errorf("the preset enables %s, and the install lines of docs/install.md do not", m[1])
		}
	}
}

// A new reader reads the whole README: details belong in docs/.
func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(read(t, "README.md"), "\n"); n > 200 {
		t.Errorf("README.md has %d lines, at most 200: move details to docs/", n)
	}
}
