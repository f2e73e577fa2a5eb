package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

func TestParseDocument(t *testing.T) {
	p, err := parseDocument("a\n<!-- node: x.yaml -->\n<!-- first: true -->\n```console\n$ a\nb …\n…\n[exit code 3]\n# c\n```\n<!-- real host -->\n```console\n$ d\n```\n<!-- file: n.yaml -->\n```yaml\nk: v\n```\n```sh\ne\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	if p.node != "x.yaml" || len(p.blocks) != 3 || len(p.blocks[0].commands) != 2 {
		t.Fatalf("read %+v", p)
	}
	a, c := &p.blocks[0].commands[0], p.blocks[0].commands[1]
	if p.blocks[0].first[0] != "true" || a.text != "a" || a.code != 3 || c.text != "c" || c.code != 0 || !p.blocks[1].realHost || p.blocks[2].text != "k: v\n" {
		t.Errorf("read %+v", p)
	}
	for output, same := range map[string]bool{"b 1\n": true, "b 1\nmore\n": true, "c 1\n": false, "": false} {
		if got := a.difference(output) == ""; got != same {
			t.Errorf("%q is as documented: %v", output, got)
		}
	}
	if (&step{output: []string{"b"}}).difference("b\nc\n") == "" {
		t.Error("a line that is not documented is not noticed")
	}
	if _, err := parseDocument("```console\noutput\n```\n"); err == nil {
		t.Error("output without a command is accepted")
	}
}

// Every console block of the README and of every document runs on a virtual node, in the order of the document, and prints what the document
// says. Blocks that need another host say so, and are counted.
func TestConsoleBlocks(t *testing.T) {
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"gpushared", "gpushare", "gpushare-nvml", "gpushare-thaw", "gpushare-start", "gpusim", "gpusim-burn"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			t.Skipf("%s is missing: run 'make build' first", p)
		}
	}
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, file := range append(documents, filepath.Join(root, "README.md")) {
		name := strings.TrimPrefix(file, root+"/")
		p, err := parseDocument(read(t, name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, b := range p.blocks {
			if !b.realHost {
				ran += len(b.commands)
			}
		}
		t.Run(strings.TrimSuffix(filepath.Base(name), ".md"), func(t *testing.T) {
			if t.Parallel(); len(p.blocks) > 0 {
				runDocument(t, bin, name, &p)
			}
		})
	}
	if ran < 60 {
		t.Errorf("only %d commands were found: the reading is broken", ran)
	}
}

// runDocument runs the blocks of one document.
func runDocument(t *testing.T, bin, name string, p *document) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := &harness.Node{Bin: bin, File: filepath.Join(root, "testdata/nodes", p.node)}
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
	s := newSession(t, n)
	for i := range p.blocks {
		b := &p.blocks[i]
		for _, c := range b.first {
			if out, code := s.run(ctx, c); code != 0 {
				t.Fatalf("%s:%d: the preparation %q exits with %d:\n%s", name, b.line, c, code, out)
			}
		}
		if b.file != "" {
			if err := os.WriteFile(filepath.Join(s.dir, b.file), []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if b.realHost {
			continue
		}
		for j := range b.commands {
			c := &b.commands[j]
			if program := strings.Fields(c.text)[0]; !slices.Contains(harmless, program) {
				t.Errorf("%s:%d: %s\n%s could change this host: mark the block as for a real host", name, c.line, c.text, program)
				continue
			}
			out, code := s.run(ctx, c.text)
			if code != c.code {
				t.Errorf("%s:%d: %s\nexits with %d, the document says %d:\n%s", name, c.line, c.text, code, c.code, out)
			} else if d := c.difference(out); d != "" {
				t.Errorf("%s:%d: %s\nthe document has %q, it prints:\n%s", name, c.line, c.text, d, out)
			}
		}
	}
}

// harmless are the programs that a block may start here: they reach the virtual node and the directory of the session only.
var harmless = []string{"gpushare", "gpusim", "eval", "sed", "curl"}

// session is a shell of a reader: a directory with the examples, and what earlier commands left.
type session struct {
	node *harness.Node
	dir  string
	env  []string
}

func newSession(t *testing.T, n *harness.Node) *session {
	t.Helper()
	s := &session{node: n, dir: t.TempDir()}
	for _, shared := range []string{"examples", "packaging"} {
		from, err := filepath.Abs(filepath.Join(root, shared))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(from, filepath.Join(s.dir, shared)); err != nil {
			t.Fatal(err)
		}
	}
	// The programs of the reader use a virtual GPU as theirs would use a real one.
	programs := filepath.Join(s.dir, ".programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"python", "make"} {
		text := fmt.Sprintf("#!/bin/sh\nexec %s --memory 64MiB --seconds 1 >/dev/null\n", n.Burn()[0])
		if err := os.WriteFile(filepath.Join(programs, program), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.env = append(n.Environ(), "PATH="+programs+":"+n.Bin+":"+os.Getenv("PATH"), "NO_COLOR=1", "COLUMNS=100")
	return s
}

// leaseName stands for the name of the lease that was started last.
var leaseName = regexp.MustCompile(`\bLEASE\b`)

// run runs a command of a document and returns what it prints, errors included. LEASE in it is the lease that was started last.
func (s *session) run(ctx context.Context, text string) (out string, code int) {
	if leaseName.MatchString(text) {
		var newest *api.Lease
		if st, err := s.node.Client().Status(ctx); err == nil {
			for i := range st.Leases {
				if l := &st.Leases[i]; newest == nil || l.Created.After(newest.Created) {
					newest = l
				}
			}
		}
		if newest == nil {
			return "there is no lease to name", -1
		}
		text = leaseName.ReplaceAllString(text, newest.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", text)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.WaitDelay = time.Second // Background programs keep the output open.
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		return err.Error(), -1
	}
	return string(b), cmd.ProcessState.ExitCode()
}
