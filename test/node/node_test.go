package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

const root = "../.."

// bin finds the programs.
func bin(t *testing.T) string {
	t.Helper()
	dir, err := programsForAll()
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%v: run 'make build' first", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// programsForAll is the directory of the programs. The tests of root run them as other users too: if these cannot enter the directory, as
// in root's home, or the umask of the build left them no right, it is another one with the same programs.
var programsForAll = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		return "", err
	}
	daemon, err := os.Stat(filepath.Join(dir, "gpushared"))
	if err != nil {
		return "", err
	}
	open := os.Geteuid() != 0 || canEnter(dir) && daemon.Mode().Perm()&0o005 == 0o005
	other := dir
	if !open {
		if other, err = os.MkdirTemp("", "bin"); err == nil { // It is removed with all that the tests made.
			err = os.Chmod(other, 0o755)
		}
	}
	for _, p := range []string{
		"gpushared", "gpushare", "gpushare-cli", "gpushare-nvml", "gpushare-start", "gpushare-front", "gpushare-thaw", "gpushare-plot",
		"gpusim", "gpusim-burn", "libnvidia-ml.so.470", "libnvidia-ml.so.535", "libnvidia-ml.so.550", "libnvidia-ml.so.580", "libnvidia-ml.so.615",
	} {
		_, missing := os.Stat(filepath.Join(dir, p))
		if err = cmp.Or(err, missing); err == nil && !open {
			err = exec.Command("cp", "-l", filepath.Join(dir, p), other).Run()
			if err != nil {
				err = exec.Command("cp", filepath.Join(dir, p), other).Run() // It is on another file system.
			}
			err = cmp.Or(err, os.Chmod(filepath.Join(other, p), 0o755))
		}
	}
	return other, err
})

// canEnter reports whether every user can reach what is in a directory.
func canEnter(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm()&1 == 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// soon is for one event of a node. What is measured every 10 s takes 20 s of it on an idle host.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newNode prepares a node from a file of testdata/nodes, or from YAML.
func newNode(t *testing.T, file string) *harness.Node {
	t.Helper()
	n := &harness.Node{Bin: bin(t), File: filepath.Join(root, "testdata/nodes", file)}
	if strings.Contains(file, "\n") {
		n.File = filepath.Join(t.TempDir(), "node.yaml")
		if err := os.WriteFile(n.File, []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if r := n.CLIIn(ctx, "version: v1\nnode: {enforce: on}\n", "apply", "-f", "-", "--force"); r.Code != 0 {
			t.Logf("the node was not emptied: %s", r.Err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// startHasty starts a node with a short driver timeout, for tests with a hanging GPU.
func startHasty(t *testing.T, file string) *harness.Node {
	t.Helper()
	n := newNode(t, file)
	n.Settings = map[string]string{"driver_read_timeout": "2s"}
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

// start starts the virtual GPUs and the daemon.
func start(t *testing.T, file string) *harness.Node {
	t.Helper()
	n := newNode(t, file)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

func status(t *testing.T, n *harness.Node) *api.Status {
	t.Helper()
	c := n.Client()
	defer c.Close()
	s, err := c.Status(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// apply applies a spec that must succeed.
func apply(t *testing.T, n *harness.Node, spec string) {
	t.Helper()
	if r := n.CLIIn(soon(t), spec, "apply", "-f", "-"); r.Code != 0 {
		t.Fatalf("apply exited with %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// writes is the number of calls that changed a virtual GPU.
func writes(t *testing.T, n *harness.Node) uint64 {
	t.Helper()
	var s struct {
		Counters struct {
			Writes uint64 `json:"writes"`
		} `json:"counters"`
	}
	if err := n.Ctl(soon(t), &s, "status"); err != nil {
		t.Fatal(err)
	}
	return s.Counters.Writes
}

// quick is a node without latencies: two GPUs in MIG mode and two others.
const quick = `driver: "580"
gpus:
  - {model: A100-SXM4-40GB, count: 2, mig: true}
  - {model: A100-SXM4-40GB, count: 2}
`

const small = `version: v1
node: {enforce: on}
gpus:
  - select: {index: 0}
    mode: mig
    mig: {layout: [3g.20gb, 1g.5gb]}
  - select: {index: 2}
    mode: timeslice
  - select: {index: 3}
    mode: exclusive
tenants:
  - name: red
    grants:
      - {name: cut, mig: 3g.20gb}
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}
      - {name: whole, exclusive: 1}
  - name: blue
    overuse: {gpu_memory: kill, grace: 1s}
    grants:
      - {name: part, timeslice: {share: 70%, gpu_memory: 8GiB}}
`

func TestApplyTwiceChangesNothing(t *testing.T) {
	n := start(t, quick)
	r := n.CLIIn(soon(t), small, "apply", "-f", "-", "--check", "--diff")
	if r.Code != 0 || !strings.Contains(r.Out, "3g.20gb at 4") && !strings.Contains(r.Out, "3g.20gb at 0") {
		t.Fatalf("--check exited with %d and printed:\n%s%s", r.Code, r.Out, r.Err)
	}
	if got := writes(t, n); got != 0 {
		t.Fatalf("--check made %d writes", got)
	}
	apply(t, n, small)
	before := writes(t, n)
	if before == 0 {
		t.Fatal("the apply wrote nothing")
	}
	r = n.CLIIn(soon(t), small, "apply", "-f", "-")
	if r.Code != 0 || !strings.Contains(r.Out, "no changes") {
		t.Errorf("the second apply exited with %d and printed:\n%s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "plan", "--exit-code"); r.Code != 0 {
		t.Errorf("plan --exit-code exited with %d after an apply:\n%s", r.Code, r.Out)
	}
	c := n.Client()
	first, err := c.Counters(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.Reload(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	last, err := c.Counters(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if first["writes"] != last["writes"] {
		t.Errorf("converging again made %d writes", last["writes"]-first["writes"])
	}
	if got := writes(t, n); got != before {
		t.Errorf("the virtual node saw %d more writes", got-before)
	}
	checkRollback(t, n)
}

func TestEveryVerbHasJSON(t *testing.T) {
	n := start(t, quick)
	apply(t, n, small)
	for _, verb := range []string{"status", "get", "plan", "doctor", "version", "gpu list", "mig list", "mps list", "tenant list", "tenant show red", "lease list", "history", "history 1"} {
		t.Run(strings.ReplaceAll(verb, " ", "-"), func(t *testing.T) {
			r := n.CLI(soon(t), append(strings.Fields(verb), "--json")...)
			var out map[string]any
			if err := json.Unmarshal([]byte(r.Out), &out); err != nil || len(out) == 0 {
				t.Errorf("exit %d, no JSON: %v\n%s%s", r.Code, err, r.Out, r.Err)
			}
		})
	}
}

// buildWithFaults builds the programs with fault points, at which they can be killed. They also check the order of locks.
func buildWithFaults(t *testing.T) string {
	t.Helper()
	shipped := bin(t)
	dir := t.TempDir()
	entries, err := os.ReadDir(shipped)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(shipped, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "gpushared")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(
		t.Context(), "go", "build", "-tags", "faultpoint,lockcheck", "-o", filepath.Join(dir, "gpushared"), "./cmd/gpushared",
	)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build with fault points: %v\n%s", err, out)
	}
	return dir
}

// replaced returns the text with the first old replaced by with. A text without it fails the test: a spec that did not
// change proves nothing.
func replaced(tb testing.TB, text, old, with string) string {
	tb.Helper()
	if !strings.Contains(text, old) {
		tb.Fatalf("the text has no %q to replace:\n%s", old, text)
	}
	return strings.Replace(text, old, with, 1)
}
