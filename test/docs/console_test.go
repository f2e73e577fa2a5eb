package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/documents"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

// Every console block of the README and of every document runs on a virtual node, in the order of the document, and prints what the document
// says. Blocks that need another host say so: TestEveryBlockIsRun.
func TestConsoleBlocks(t *testing.T) {
	enumeration.Long(t)
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"gpushared", "gpushare", "gpushare-nvml", "gpushare-thaw", "gpushare-start", "gpushare-front", "gpusim", "gpusim-burn"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			t.Skipf("%s is missing: run 'make build' first", p)
		}
	}
	ran := 0
	for _, name := range documentNames(t) {
		p := document(t, name)
		for i := range p.Blocks {
			if b := &p.Blocks[i]; b.Place == documents.Everywhere {
				ran += len(b.Commands)
			}
		}
		t.Run(strings.TrimSuffix(filepath.Base(name), ".md"), func(t *testing.T) {
			if t.Parallel(); len(p.Blocks) > 0 {
				runDocument(t, bin, name, &p)
			}
		})
	}
	if ran < 60 {
		t.Errorf("only %d commands were found: the reading is broken", ran)
	}
}

// runDocument runs the blocks of one page.
func runDocument(t *testing.T, bin, name string, p *documents.Document) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	// The daemon and its reader are in different zones, one of them half an hour off, and neither in that of the account.
	n := &harness.Node{Bin: bin, File: filepath.Join(root, "testdata/nodes", p.Node), Env: []string{"TZ=America/St_Johns", "LC_ALL=C"}}
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
	reader := readerOf(t, n)
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	walked := virtualHost(t, n, reader).Walk(ctx, name, p)
	for _, wrong := range walked.Wrong {
		t.Error(wrong)
	}
	for _, left := range walked.LeftOut {
		t.Errorf("%s: mark the block as for a real host", left)
	}
}

// harmless are the programs that a block may start here: they reach the virtual node and the directory of the reader only.
var harmless = []string{"gpushare", "gpusim", "eval", "sed", "curl"}

// installed is where the package has the examples.
const installed = "/usr/share/gpushare/"

// readerOf is the name of the user who runs this test. If their host has none, that of the node has: members have names.
func readerOf(t *testing.T, n *harness.Node) string {
	t.Helper()
	uid := strconv.Itoa(os.Geteuid())
	if line, err := exec.Command("getent", "passwd", uid).Output(); err == nil {
		name, _, _ := strings.Cut(string(line), ":")
		return name
	}
	getent := filepath.Join(t.TempDir(), "getent")
	n.Settings = map[string]string{"getent": getent}
	text := `#!/bin/sh
database=$1
shift
missing=0
for key; do
	case $database:$key in
	passwd:reader | passwd:` + uid + `) echo 'reader:x:` + uid + `:` + strconv.Itoa(os.Getegid()) + `::/:/bin/sh' ;;
	*) getent "$database" "$key" || missing=2 ;;
	esac
done
exit $missing
`
	if err := programs.Write(getent, text); err != nil {
		t.Fatal(err)
	}
	return "reader"
}

// virtualHost is a virtual node for the user who runs this test: a directory, and the programs and examples as a package would
// install them.
func virtualHost(t *testing.T, n *harness.Node, reader string) *documents.Host {
	t.Helper()
	dir := t.TempDir()
	share, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	// The programs of the reader use a virtual GPU as theirs would use a real one.
	own := filepath.Join(dir, ".programs")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"python", "make"} {
		if err := programs.Write(filepath.Join(own, program), documents.Program(n.Burn()[0])); err != nil {
			t.Fatal(err)
		}
	}
	env := append(
		n.Environ(),
		"PATH="+own+":"+n.Bin+":"+os.Getenv("PATH"),
		"NO_COLOR=1",
		"COLUMNS=100",
		"READER="+reader,
		"TZ=Asia/Kolkata",
	)
	shell := func(ctx context.Context, _, text string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "bash", "-c", strings.ReplaceAll(text, installed, "'"+share+"/'"))
		cmd.Dir, cmd.Env = dir, env
		return cmd
	}
	return &documents.Host{
		Client: n.Client(), Prepare: shell, Type: shell, Deadline: time.Minute,
		Write: func(_, name, text string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644) },
		Runs:  func(b *documents.Block) bool { return b.Place == documents.Everywhere },
		Lack: func(c *documents.Step) string {
			if program := strings.Fields(c.Text)[0]; !slices.Contains(harmless, program) {
				return program + " could change this host"
			}
			return ""
		},
	}
}
