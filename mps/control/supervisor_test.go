package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/detached"
	"github.com/gpushare/gpushare/test/enumeration"
)

func TestStartObserveStop(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	if st := r.observe(t); st != nil {
		t.Fatalf("before the start: %+v", st)
	}
	set := mps.Settings{GPU: gpuA, Threads: 40, Memory: 1500 << 20}
	r.start(t, set)
	st := r.running(t)
	want := &mps.State{
		GPU:        gpuA,
		Phase:      mps.Running,
		Unit:       "gpushare-mps-0123456789ab.service",
		PID:        st.PID,
		Version:    st.Version,
		Program:    st.Program,
		SingleUser: st.SingleUser,
		AnyoneSets: st.AnyoneSets,
		Settings:   &set,
		Start:      st.Start,
		Defaults:   &mps.Defaults{Threads: 40, Memory: "1G"},
	}
	if diff := cmp.Diff(want, st); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}

	p := r.burn(t, r.environment(t, mps.Limits{}), "--memory", "512MiB", "--hold")
	st = r.running(t)
	if len(st.Servers) != 1 || !cmp.Equal(st.Clients, []int{p.cmd.Process.Pid}) {
		t.Errorf("servers %v, clients %v", st.Servers, st.Clients)
	}
	line := r.node.Contexts()[p.cmd.Process.Pid]
	if !strings.HasSuffix(line, fmt.Sprintf("limit=%d share=40", 1500<<20)) || !strings.Contains(line, "mps="+r.pipe()+" ") {
		t.Errorf("the client joined as %q", line)
	}
	lowered := r.burn(t, r.environment(t, mps.Limits{Threads: 12.5, Memory: 256 << 20}), "--hold")
	if line := r.node.Contexts()[lowered.cmd.Process.Pid]; !strings.HasSuffix(line, fmt.Sprintf("limit=%d share=12", 256<<20)) {
		t.Errorf("the lease's own limits: %q", line)
	}

	if err := r.Stop(t.Context(), deviceA); err != nil {
		t.Fatal(err)
	}
	p.ends(t, 1, "CUDA error 810")
	lowered.ends(t, 1, "CUDA error 810")
	if st := r.observe(t); st == nil || st.Phase != mps.Restarting {
		t.Errorf("after Stop, before Forget: %+v", st)
	}
	if err := r.Forget(deviceA); err != nil {
		t.Fatal(err)
	}
	if st := r.observe(t); st != nil {
		t.Errorf("after Forget: %+v", st)
	}
	if err := r.Stop(t.Context(), deviceA); err != nil {
		t.Errorf("stopping MPS that does not run: %v", err)
	}
}

func modeOf(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().String()
}

func TestFilePermissions(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.start(t, mps.Settings{GPU: gpuA})
	l := r.layout(deviceA)
	pipe, log := "drwx------", "prw-------"
	if r.running(t).SingleUser { // Its servers have the group of root.
		pipe, log = "drwx--x---", "prw--w----"
	}
	want := map[string]string{
		l.dir: "drwx--x--x", l.pipe(): pipe, l.tenant(): "drwx------", l.logs(): "drwx------",
		filepath.Join(l.pipe(), "log"): log, filepath.Join(l.tenant(), "control"): "Srw-rw-rw-",
	}
	for path, mode := range want {
		if got := modeOf(t, path); got != mode {
			t.Errorf("%s is %s, want %s", path, got, mode)
		}
	}
	list, err := os.ReadDir(l.tenant())
	if err != nil || len(list) != 1 {
		t.Errorf("tenants see %v (%v), want only the client socket", list, err)
	}
	// With the restricted log the daemon still logs.
	b, err := os.ReadFile(r.logPath())
	if err != nil || !strings.Contains(string(b), "Starting control daemon") {
		t.Errorf("log %q %v", b, err)
	}
}

func TestEnvironmentOfTheUnit(t *testing.T) {
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
	t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7")
	t.Setenv("SECRET", "x")
	r := newFixture(t)
	r.start(t, mps.Settings{GPU: gpuA})
	st := r.running(t)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", st.PID))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for kv := range strings.SplitSeq(strings.TrimRight(string(b), "\x00"), "\x00") {
		k, v, _ := strings.Cut(kv, "=")
		got[k] = v
	}
	delete(got, "GPUSHARE_SERVICE_TOKEN") // Of package detached.
	want := map[string]string{
		"PATH":                      filepath.Dir(r.Control) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY":   r.pipe(),
		"CUDA_MPS_LOG_DIRECTORY":    r.layout(deviceA).logs(),
		"CUDA_MPS_PROTOCOL_VERSION": "2",
		"CUDA_VISIBLE_DEVICES":      string(gpuA),
		"LC_ALL":                    "C",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

// After a crash gpushared finds the control daemon that it started, and disturbs no client.
func TestRestartFindsControlDaemon(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	set := mps.Settings{GPU: gpuA, Threads: 50}
	r.start(t, set)
	p := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	before := r.running(t)

	r.units = &detached.Services{Dir: r.units.Dir}
	control := r.Control
	r.Supervisor = r.supervisor()
	r.Control = control
	if diff := cmp.Diff(before, r.running(t)); diff != "" {
		t.Errorf("the next run observes (-before +after):\n%s", diff)
	}
	r.correct(t, set)
	if diff := cmp.Diff(before, r.running(t)); diff != "" {
		t.Errorf("setting it up again changed (-before +after):\n%s", diff)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.ends(t, 143, "stopped by SIGTERM")
}

func TestControlDaemonDies(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	set := mps.Settings{GPU: gpuA, Threads: 50}
	r.start(t, set)
	p := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	before := r.running(t)
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	procfstest.AwaitEnd(t, before.PID)
	st := r.observe(t)
	if st.Phase != mps.Restarting || !strings.Contains(st.Reason, "killed by signal 9") || !cmp.Equal(st.Leftovers, before.Servers) {
		t.Errorf("after a kill -9: %+v, servers were %v", st, before.Servers)
	}
	// The next start ends the leftover server and its client.
	r.start(t, set)
	after := r.running(t)
	if after.PID == before.PID || len(after.Servers) != 0 {
		t.Errorf("after the start: %+v", after)
	}
	p.ends(t, 1, "CUDA error 810")
	procfstest.AwaitEnd(t, before.Servers[0])
	// Tenants reach the new daemon through the same directory.
	next := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	if st := r.running(t); !cmp.Equal(st.Clients, []int{next.cmd.Process.Pid}) {
		t.Errorf("clients of the new daemon: %v", st.Clients)
	}
}

// A peer that connects and sends nothing blocks the whole daemon. The daemon counts as unresponsive after three missed
// greetings and is healthy again when the peer ends. A stop does not wait for it. No other test runs meanwhile, because that is real
// time.
func TestUnresponsive(t *testing.T) {
	enumeration.Long(t)
	r := newFixture(t)
	r.start(t, mps.Settings{GPU: gpuA})
	r.running(t)
	c, err := net.Dial("unixpacket", filepath.Join(r.layout(deviceA).tenant(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	for i, phase := range []mps.Phase{mps.Running, mps.Running, mps.Unresponsive, mps.Unresponsive} {
		st := r.observe(t)
		if st.Phase != phase || st.MissedGreetings != i+1 || st.Healthy() || !strings.Contains(st.Reason, "no greeting") {
			t.Errorf("observation %d: %+v, want %s", i+1, st, phase)
		}
	}
	if _, err := (client{program: r.Control, pipeDir: r.pipe()}).query(t.Context(), "get_server_list"); !errors.Is(err, ErrUnresponsive) {
		t.Errorf("query: %v, want ErrUnresponsive", err)
	}
	c.Close()
	r.running(t)

	c, err = net.Dial("unixpacket", filepath.Join(r.pipe(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := r.Stop(t.Context(), deviceA); err != nil {
		t.Fatal(err)
	}
	if duration := time.Since(begin); duration > 15*time.Second {
		t.Errorf("stopping an unresponsive daemon lasted %v", duration)
	}
}

// A daemon with an unlinked control socket still answers the control program: only the probe of both sockets detects it.
func TestUnlinkedSocket(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.start(t, mps.Settings{GPU: gpuA})
	r.running(t)
	// Without its own links gpushare cannot restore it.
	if err := errors.Join(os.RemoveAll(r.layout(deviceA).kept()), os.Remove(filepath.Join(r.pipe(), "control"))); err != nil {
		t.Fatal(err)
	}
	if st := r.observe(t); st.Healthy() || !strings.Contains(st.Reason, "control: "+ErrNoDaemon.Error()) {
		t.Errorf("%+v", st)
	}
}

func TestStopped(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.start(t, mps.Settings{GPU: gpuA})
	st := r.running(t)
	if err := syscall.Kill(st.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	procfstest.AwaitStopped(t, st.PID)
	if st := r.observe(t); st.Healthy() || st.MissedGreetings != 1 {
		t.Errorf("a stopped daemon: %+v", st)
	}
	if err := syscall.Kill(st.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.running(t)
}

// The program's pid file is not trusted: it may name any process.
func TestStalePIDFile(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	l := r.layout(deviceA)
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(l.pipe(), "nvidia-cuda-mps-control.pid")
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())+"99"), 0o666); err != nil {
		t.Fatal(err)
	}
	r.start(t, mps.Settings{GPU: gpuA})
	st := r.running(t)
	if name := procfs.Name(st.PID); !strings.HasPrefix("nvidia-cuda-mps-control", name) {
		t.Errorf("the control daemon is pid %d, %q", st.PID, name)
	}
	if err := r.Stop(t.Context(), deviceA); err != nil {
		t.Fatal(err)
	}
	if _, err := procfs.Read(os.Getpid()); err != nil {
		t.Error(err)
	}
}

func TestDriftIsCorrected(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	set := mps.Settings{GPU: gpuA, Threads: 30, Memory: 2 << 30}
	r.start(t, set)
	pid := r.running(t).PID
	c := client{program: r.Control, pipeDir: r.pipe()}
	tests := []struct{ name, command, want string }{
		{"threads", "set_default_active_thread_percentage 90", "thread percentage is 90, it should be 30"},
		{"memory", "set_default_device_pinned_mem_limit 0 4G", `memory limit reads back as "4G", it should be "2G"`},
		{"no memory limit", "set_default_device_pinned_mem_limit 0 0", `memory limit reads back as "", it should be "2G"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := c.query(t.Context(), test.command); err != nil {
				t.Fatal(err)
			}
			if st := r.observe(t); st.Healthy() || !strings.Contains(st.Reason, test.want) {
				t.Errorf("%+v, want %q", st, test.want)
			}
			r.correct(t, set)
			if st := r.running(t); st.PID != pid {
				t.Error("the correction restarted it")
			}
		})
	}
	t.Run("tenants' socket", func(t *testing.T) {
		if err := os.Remove(filepath.Join(r.layout(deviceA).tenant(), "control")); err != nil {
			t.Fatal(err)
		}
		if st := r.observe(t); st.Healthy() || !strings.Contains(st.Reason, "tenants' socket") {
			t.Errorf("%+v", st)
		}
		r.correct(t, set)
		r.running(t)
	})
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		set     mps.Settings
		prepare func(t *testing.T, r *fixture)
		want    string
	}{
		{"no GPU behind the driver", mps.Settings{GPU: gpuA}, func(t *testing.T, r *fixture) {
			if err := os.Remove(filepath.Join(r.node.Root, "run/gpusim/cuda.sock")); err != nil {
				t.Fatal(err)
			}
		}, "found no usable GPU (it exited with 100)"},
		{
			"no program",
			mps.Settings{GPU: gpuA},
			func(_ *testing.T, r *fixture) { r.Control = "/nonexistent/nvidia-cuda-mps-control" },
			"no program at /nonexistent",
		},
		{
			"relative program",
			mps.Settings{GPU: gpuA},
			func(_ *testing.T, r *fixture) { r.Control = "nvidia-cuda-mps-control" },
			"is not absolute",
		},
		{
			"path too long",
			mps.Settings{GPU: gpuA},
			func(_ *testing.T, r *fixture) { r.RunDir = filepath.Join(r.dir, strings.Repeat("x", 80)) },
			"set a shorter run_dir",
		},
		{"no UUID", mps.Settings{GPU: "0"}, nil, "not a UUID"},
		{"threads", mps.Settings{GPU: gpuA, Threads: 101}, nil, "thread percentage of 101"},
		{"memory", mps.Settings{GPU: gpuA, Memory: 1<<20 + 1}, nil, "whole MiB"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newFixtureOf(t, "580.178.04") // whose control program says by its exit code that there is no GPU
			if test.prepare != nil {
				test.prepare(t, r)
			}
			err := r.Start(t.Context(), test.set)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
			if err != nil && strings.Count(err.Error(), "cannot start MPS") != 1 {
				t.Errorf("%v: it has \"cannot start MPS\" more than once", err)
			}
			if st, err := r.units.ServiceState(t.Context(), mps.UnitName(deviceA)); err != nil || st.Known {
				t.Errorf("a unit is left behind: %+v %v", st, err)
			}
		})
	}
}

// gpushared was killed during a start: there is a record and no unit.
func TestInterruptedStart(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	l := r.layout(deviceA)
	set := mps.Settings{GPU: gpuA}
	if err := errors.Join(l.create(), l.writeRecord(record{Settings: set})); err != nil {
		t.Fatal(err)
	}
	if st := r.observe(t); st == nil || st.Phase != mps.Restarting {
		t.Errorf("%+v, want it restarting", st)
	}
	r.start(t, set)
	r.running(t)
}

func TestObserveDoesNotWaitForAChange(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.start(t, mps.Settings{GPU: gpuA})
	st := r.running(t)
	r.duringAChange(func() {
		if got := r.Observe(t.Context(), deviceA); got != st {
			t.Errorf("during a change: %+v, want the observation from before it", got)
		}
	})
}

// During a change the last observation is returned, without the clients that have ended since: nothing is refused because of them.
func TestObserveDuringAChangeKnowsWhatHasEnded(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.start(t, mps.Settings{GPU: gpuA})
	r.running(t)
	client := r.burn(t, r.environment(t, mps.Limits{}), "--hold").cmd.Process.Pid
	if st := r.Observe(t.Context(), deviceA); !cmp.Equal(st.Clients, []int{client}) {
		t.Fatalf("clients %v, want %d", st.Clients, client)
	}
	r.duringAChange(func() {
		if err := syscall.Kill(client, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		procfstest.AwaitEnd(t, client)
		if st := r.Observe(t.Context(), deviceA); len(st.Clients) != 0 || st.Phase != mps.Running {
			t.Errorf("after the end of pid %d: %+v", client, st)
		}
	})
}

// Until the reading is old an observation only waits for the greeting.
func TestReadingIsKept(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.start(t, mps.Settings{GPU: gpuA})
	r.running(t)
	first := r.burn(t, r.environment(t, mps.Limits{}), "--hold").cmd.Process.Pid
	if st := r.Observe(t.Context(), deviceA); !cmp.Equal(st.Clients, []int{first}) {
		t.Errorf("clients %v of a server that has just started", st.Clients)
	}
	second := r.burn(t, r.environment(t, mps.Limits{}), "--hold").cmd.Process.Pid
	if st := r.Observe(t.Context(), deviceA); !st.AnyoneSets && !cmp.Equal(st.Clients, []int{first}) {
		t.Errorf("clients %v: read at every observation", st.Clients)
	}
	r.clock.pass(readInterval)
	if st := r.Observe(t.Context(), deviceA); !cmp.Equal(st.Clients, slices.Sorted(slices.Values([]int{first, second}))) {
		t.Errorf("clients %v once the reading is old", st.Clients)
	}
	if err := syscall.Kill(second, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	procfstest.AwaitEnd(t, second)
	if st := r.Observe(t.Context(), deviceA); !cmp.Equal(st.Clients, []int{first}) {
		t.Errorf("clients %v after the end of pid %d", st.Clients, second)
	}
}
