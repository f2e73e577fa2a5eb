package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/burn/burntest"
	"github.com/gpushare/gpushare/gpusim/mpsd"
	"github.com/gpushare/gpushare/gpusim/mpsd/mpsdtest"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/detached"
	"github.com/gpushare/gpushare/test/leftover"
)

var (
	builder burntest.Builder
	standIn mpsdtest.Builder
)

func TestMain(m *testing.M) {
	code := leftover.Main(m)
	builder.Remove()
	standIn.Remove()
	os.Exit(code)
}

const deadline = 20 * time.Second

const gpuA = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")

var deviceA = mps.Whole(gpuA)

// fixture is a supervisor on a node with one GPU. Its services are stopped at the end of the test.
type fixture struct {
	*Supervisor
	node  *burntest.Node
	units *detached.Services
	clock *clock
	dir   string
}

// clock is a clock that the test advances.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// driverEnv is the version of the driver of the node, for all tests that do not choose one.
const driverEnv = "MPS_TEST_DRIVER"

// defaultDriver is one of branches.
const defaultDriver = "580.178.04"

// branches are versions of the driver whose control programs differ.
var branches = []string{"535.261.03", "550.163.01", "555.58.02", "580.178.04", "595.99.02", "615.71.09"}

// onEveryBranch are the branches for a test that covers all of them itself. The processes of TestOnEveryBranch leave it out.
func onEveryBranch(t *testing.T) []string {
	t.Helper()
	if os.Getenv(driverEnv) != "" {
		t.Skip("this process runs the tests of one branch: the process that started it runs this one on all")
	}
	return branches
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOf(t, cmp.Or(os.Getenv(driverEnv), defaultDriver))
}

// newFixtureOf is newFixture with this version of the driver and its control program.
func newFixtureOf(t testing.TB, driver string) *fixture {
	t.Helper()
	n := burntest.Start(t)
	version := filepath.Join(n.Root, "sys/module/nvidia/version")
	if err := errors.Join(os.MkdirAll(filepath.Dir(version), 0o755), os.WriteFile(version, []byte(driver+"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(n.Root, "usr/bin", mpsd.ControlName)
	if err := os.Symlink(standIn.Path(t), control); err != nil {
		t.Fatal(err)
	}
	c := &clock{now: time.Unix(1e9, 0)}
	u := &detached.Services{Dir: filepath.Join(n.Root, "s")}
	f := &fixture{node: n, units: u, clock: c, dir: filepath.Join(n.Root, "m")}
	f.Supervisor = f.supervisor()
	f.Control = control
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := u.StopService(ctx, mps.UnitName(deviceA), time.Second); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	return f
}

// supervisor returns a new supervisor over the same files, as after a restart of gpushared.
func (f *fixture) supervisor() *Supervisor {
	s := &Supervisor{
		Units:    f.units,
		RunDir:   f.dir,
		StateDir: filepath.Join(f.node.Root, "state"),
		Log:      slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now:      f.clock.Now,
	}
	if f.Supervisor != nil {
		s.Control = f.Control
	}
	return s
}

func (f *fixture) start(t *testing.T, set mps.Settings) {
	t.Helper()
	if err := f.Start(t.Context(), set); err != nil {
		t.Fatal(err)
	}
}

// correct sets up the control daemon that runs.
func (f *fixture) correct(t *testing.T, set mps.Settings) {
	t.Helper()
	if err := f.Correct(t.Context(), set); err != nil {
		t.Fatal(err)
	}
}

// observe observes with lists and limits that are read again.
func (f *fixture) observe(t *testing.T) *mps.State {
	t.Helper()
	f.clock.pass(time.Hour)
	return f.Observe(t.Context(), deviceA)
}

// running fails the test unless MPS is healthy.
func (f *fixture) running(t *testing.T) *mps.State {
	t.Helper()
	st := f.observe(t)
	if !st.Healthy() {
		t.Fatalf("observed %+v, want it healthy", st)
	}
	return st
}

// duringAChange calls use while another goroutine changes the control daemon.
func (f *fixture) duringAChange(use func()) {
	begun, used, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		w := f.gpuState(deviceA)
		w.mu.Lock()
		defer w.mu.Unlock()
		close(begun)
		<-used
	}()
	<-begun
	use()
	close(used)
	<-ended
}

// logPath is the file with the output of the control daemon.
func (f *fixture) logPath() string { return filepath.Join(f.units.Dir, mps.UnitName(deviceA)+".log") }

func (f *fixture) pipe() string { return f.layout(deviceA).pipe() }

func (f *fixture) environment(t *testing.T, lim mps.Limits) []string {
	t.Helper()
	env, err := f.Environment(deviceA, lim)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// program is a GPU program that is ready.
type program struct {
	cmd    *exec.Cmd
	stdout io.Reader
	stderr bytes.Buffer
}

func (f *fixture) burn(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.CommandContext(t.Context(), builder.Path(t), args...)}
	p.cmd.Env = append([]string{"GPUSIM_ROOT=" + f.node.Root}, env...)
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 6)
	if _, err := io.ReadFull(out, b); err != nil || string(b) != "ready\n" {
		t.Fatalf("burn: %q %v %s", b, err, p.stderr.String())
	}
	return p
}

func (p *program) ends(t *testing.T, code int, message string) {
	t.Helper()
	rest, err := io.ReadAll(p.stdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatal(err)
		}
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("burn ended with %d, want %d", got, code)
	}
	if all := string(rest) + p.stderr.String(); !strings.Contains(all, message) {
		t.Errorf("burn printed %q, want %q in it", all, message)
	}
}
