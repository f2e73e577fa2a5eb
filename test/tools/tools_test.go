//go:build tools

package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/test/harness"
)

// layouts are the layouts of the first and the empty GPU of each board, by the name of its file. They have various
// profiles, and compute instances that share a GPU instance.
var layouts = map[string]struct{ layout, empty string }{
	"A30-24GB":          {"1c.2g.12gb, 1c.2g.12gb, 1g.6gb+me, 1g.6gb", "1g.6gb"},
	"A100-SXM4-40GB":    {"2c.3g.20gb, 1c.3g.20gb, 2g.10gb, 1g.5gb+me", "1g.10gb"},
	"A100-SXM4-80GB":    {"4g.40gb, 1g.20gb, 1g.10gb", "7g.80gb"},
	"H100-SXM5-80GB":    {"1c.4g.40gb, 1c.4g.40gb, 2c.4g.40gb, 2g.20gb, 1g.10gb+me", "3g.40gb"},
	"H200-141GB":        {"3g.71gb, 3g.71gb", "1g.18gb+me"},
	"H100-NVL-94GB":     {"2c.3g.47gb, 1g.24gb, 1g.12gb+me", "4g.47gb"},
	"GH200-96GB":        {"1c.4g.48gb, 1c.4g.48gb, 2g.24gb, 1g.24gb", "1g.24gb"},
	"GH200-144GB":       {"3g.72gb, 1g.36gb, 1g.18gb+me", "2g.36gb"},
	"GB200-186GB":       {"1c.3g.93gb, 2c.3g.93gb, 1g.47gb, 2g.47gb", "7g.186gb"},
	"B200-180GB":        {"2c.4g.90gb, 1c.4g.90gb, 2g.45gb, 1g.23gb+me", "2g.45gb"},
	"RTX-PRO-6000-96GB": {"2g.48gb+gfx, 1g.24gb-me, 1g.24gb+me", "1g.24gb+me.all"},
}

// The GPUs of a node by their purpose.
const (
	partitioned = iota // by gpushare
	whole              // one process computes, another has memory
	changing           // MIG mode is pending
	empty              // MIG mode without instances
	shared             // by gpushare, with MPS
)

// nodeFile uses different values for all numbers of a GPU.
const nodeFile = `driver: %q
nvlink: {bridges: %[3]s, switches: 2}
gpus:
  - {model: %[2]s, mig: true}
  - {model: %[2]s, pci: "0000:c1:00.0", minor: 6}
  - {model: %[2]s, pci: "0001:02:03.0", minor: 4, compute_mode: exclusive-process}
  - {model: %[2]s, mig: true, minor: 2}
  - {model: %[2]s}
`

const specFile = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 4}, mode: mps}
  - {select: {index: 0}, mode: mig, mig: {layout: [%s]}}%s
tenants:
  - name: red
    grants: [{name: join, mps: {share: 30%%, gpu_memory: 8GiB}}]
`

// shortContext returns a context for short operations.
func shortContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// fixture is a running node of one board with processes.
type fixture struct {
	*harness.Node
	expected
	clients *clients
	mig     []*harness.Job // one on each MIG device
}

// start starts the node, partitions its first GPU with gpushare and starts processes.
func start(t *testing.T, b *board.Board, driver string) *fixture {
	t.Helper()
	c := fetchedClients(t)
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	l := &fixture{
		Node:     &harness.Node{Bin: bin, File: filepath.Join(t.TempDir(), "node.yaml")},
		expected: expected{board: b, driver: driver},
		clients:  c,
	}
	bridges := "[]"
	if b.NVLinks > 0 {
		bridges = fmt.Sprintf("[[%d, %d]]", whole, changing)
	}
	if err := os.WriteFile(l.File, fmt.Appendf(nil, nodeFile, driver, b.File, bridges), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.Start(shortContext(t)); err != nil {
		t.Fatal(err)
	}
	l.apply(t, fmt.Sprintf(specFile, layouts[b.File].layout, ""))
	s := l.status(t)
	for i, gi := range s.GPUs[partitioned].Instances {
		for _, ci := range gi.Compute {
			l.mig = append(l.mig, l.use(t, "--gpu", string(ci.UUID), "--memory", fmt.Sprintf("%dMiB", 100*(i+1)), "--hold"))
		}
	}
	if len(l.mig) != strings.Count(layouts[b.File].layout, ",")+1 {
		t.Fatalf("gpushare created %d MIG devices of %s", len(l.mig), layouts[b.File].layout)
	}
	// The queue is long, so that the GPU stays busy on a slow host.
	l.busy = l.use(t, "--gpu", "1", "--memory", "2GiB", "--kernel", "100ms", "--queue", "1000").PID()
	l.use(t, "--gpu", "1", "--memory", "1GiB", "--hold")
	l.use(t, "--gpu", "2", "--memory", "3GiB", "--hold")
	l.wait(
		t,
		append(
			[]string{l.Bin + "/gpushare", "run", "-q", "-t", "red", "--grant", "join", "--"},
			l.Burn("--memory", "1536MiB", "--hold")...),
	)
	return l
}

func (l *fixture) apply(t *testing.T, spec string) {
	t.Helper()
	if r := l.CLIIn(shortContext(t), spec, "apply", "-f", "-"); r.Code != 0 {
		t.Fatalf("apply exited with %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// status returns the state of the virtual node.
func (l *fixture) status(t *testing.T, args ...string) server.Status {
	t.Helper()
	var s server.Status
	if err := l.Ctl(shortContext(t), &s, append([]string{"status"}, args...)...); err != nil {
		t.Fatal(err)
	}
	return s
}

// use starts a process that uses a GPU, and waits until it is ready.
func (l *fixture) use(t *testing.T, args ...string) *harness.Job {
	t.Helper()
	return l.wait(t, l.Burn(args...))
}

// wait starts any program that uses a GPU, and waits until it is ready.
func (l *fixture) wait(t *testing.T, argv []string) *harness.Job {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = l.Environ()
	job, err := l.Spawn(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(shortContext(t), "ready"); err != nil {
		t.Fatal(err)
	}
	return job
}

// python prepares a run of read.py, which uses only pynvml.
func (l *fixture) python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(shortContext(t), l.clients.python, append([]string{"read.py"}, args...)...)
	cmd.Env = l.clients.environ(l.Node)
	return cmd
}

// read runs read.py and decodes the document that it prints.
func (l *fixture) read(t *testing.T, out any, args ...string) {
	t.Helper()
	cmd := l.python(t, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("read.py %s: %v\n%s", args, err, stderr.Bytes())
	}
	decode(t, b, out)
}

// decode refuses unknown fields, to find misspelt ones.
func decode(t *testing.T, b []byte, out any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}

// TestForeignClientsReadTheNode tests every board, and the older library.
func TestForeignClientsReadTheNode(t *testing.T) {
	t.Log(fetchedClients(t).versions)
	boards, err := board.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boards {
		t.Run(b.File, func(t *testing.T) { t.Parallel(); testBoard(t, b, "580") })
		if b.File == "A100-SXM4-40GB" {
			t.Run(b.File+" on branch 535", func(t *testing.T) { t.Parallel(); testBoard(t, b, "535") })
		}
	}
}

func testBoard(t *testing.T, b *board.Board, driver string) {
	if layouts[b.File].layout == "" {
		t.Fatalf("no layout for %s: add one to layouts", b.File)
	}
	l := start(t, b, driver)
	l.hasProcesses(t)
	l.changesMode(t)
	err := harness.Await(shortContext(t), 50*time.Millisecond, "the GPU is not busy", func() (bool, error) {
		return l.status(t, "--window", "2s").GPUs[whole].Busy[l.busy] > 1.9, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("pynvml", l.readsAll)
	t.Run("nvtop", l.showsAll)
	t.Run("events", l.reportsEvents)
}

// hasProcesses checks that each GPU has its processes: without them the readings would be trivially equal.
func (l *fixture) hasProcesses(t *testing.T) {
	t.Helper()
	want := map[int]string{
		partitioned: strings.Repeat("compute ", len(l.mig)),
		whole:       "compute compute ",
		changing:    "compute ",
		empty:       "",
		shared:      "compute mps ",
	}
	got := map[int]string{}
	for i, g := range l.status(t).GPUs {
		kinds := []string{""}
		for _, p := range g.Processes {
			kinds = append(kinds, string(p.Kind)+" ")
		}
		slices.Sort(kinds)
		got[i] = strings.Join(kinds, "")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("processes by GPU (-want +got):\n%s", diff)
	}
}

// changesMode requests MIG mode with the client on a GPU in use.
func (l *fixture) changesMode(t *testing.T) {
	const inUse = 19
	var got struct {
		Activation int `json:"activation"`
	}
	l.read(t, &got, "partition", string(l.status(t).GPUs[changing].Identity.UUID))
	mode := l.status(t).GPUs[changing].MIG
	if got.Activation != inUse || mode.Current || !mode.Pending {
		t.Errorf("the client received %d, and the mode is %+v", got.Activation, mode)
	}
}

func (l *fixture) readsAll(t *testing.T) {
	var got nodeReading
	l.read(t, &got)
	s := l.status(t)
	if l.driver == "535" && !strings.Contains(l.clients.versions, "pynvml 11.") {
		got.Lacking = []string{} // A client that is newer than the library looks up functions that the library lacks.
	}
	if diff := cmp.Diff(l.node(s), got); diff != "" {
		t.Errorf("(-state of the node +read by pynvml):\n%s", diff)
	}
}

// reportsEvents lets the client wait for two events of a GPU.
func (l *fixture) reportsEvents(t *testing.T) {
	const all, xid, migConfig, none = 0x1 | 0x2 | 0x8 | 0x100 | 0x4000 | 0x8000, 0x8, 0x100, 0xFFFFFFFF
	s := l.status(t)
	pid := l.mig[len(l.mig)-1].PID()
	first := s.GPUs[partitioned]
	want := eventReading{Supported: all, Nothing: "Timeout", UUID: first.Identity.UUID, Type: xid, Data: 13}
	for _, p := range first.Processes {
		if p.PID == pid {
			want.GI, want.CI = *p.GI, *p.CI
		}
	}
	got := l.await(t, string(want.UUID), func() {
		if err := l.Ctl(shortContext(t), nil, "xid", "0", "13", "--pid", fmt.Sprint(pid)); err != nil {
			t.Fatal(err)
		}
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("an XID (-want +got):\n%s", diff)
	}

	more := fmt.Sprintf("\n  - {select: {index: 3}, mode: mig, mig: {layout: [%s]}}", layouts[l.board.File].empty)
	spec := fmt.Sprintf(specFile, layouts[l.board.File].layout, more)
	got = l.await(t, string(s.GPUs[empty].Identity.UUID), func() { l.apply(t, spec) })
	created := l.status(t).GPUs[empty]
	if len(created.Instances) != 1 {
		t.Fatalf("gpushare created %+v", created.Instances)
	}
	want = eventReading{
		Supported: all,
		Nothing:   "Timeout",
		UUID:      created.Identity.UUID,
		Type:      migConfig,
		GI:        created.Instances[0].ID,
		CI:        none,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("an instance (-want +got):\n%s", diff)
	}
}

// await runs the client, calls do when it waits, and returns the event that it received.
func (l *fixture) await(t *testing.T, uuid string, do func()) (got eventReading) {
	t.Helper()
	job, err := l.Spawn(l.python(t, "await", uuid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(shortContext(t), "waiting"); err != nil {
		t.Fatal(err)
	}
	do()
	select {
	case <-job.Done():
	case <-shortContext(t).Done():
	}
	_, document, ok := strings.Cut(job.Output(), "waiting\n")
	if !ok || !strings.HasPrefix(document, "{") {
		t.Fatalf("the client printed %s", job.Output())
	}
	decode(t, []byte(document), &got)
	return got
}
