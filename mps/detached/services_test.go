package detached

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/mps"
)

// sleeper returns a service that runs a shell command.
func sleeper(name, script string) mps.Service {
	return mps.Service{Name: name, Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}
}

func newServices(t *testing.T) *Services {
	t.Helper()
	d := &Services{Dir: filepath.Join(t.TempDir(), "services")}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := d.StopService(ctx, "s.service", time.Second); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	return d
}

func state(t *testing.T, d *Services) mps.ServiceState {
	t.Helper()
	st, err := d.ServiceState(t.Context(), "s.service")
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// awaitState polls until the state is reached: there is no event for a process that is not a child.
func awaitState(t *testing.T, d *Services, what string, ok func(mps.ServiceState) bool) mps.ServiceState {
	t.Helper()
	limit := time.Now().Add(deadline)
	for {
		st := state(t, d)
		if ok(st) {
			return st
		}
		if time.Now().After(limit) {
			t.Fatalf("the service does not become %s: %+v", what, st)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func startScript(t *testing.T, d *Services, script string) int {
	t.Helper()
	if err := d.StartService(t.Context(), sleeper("s.service", script)); err != nil {
		t.Fatal(err)
	}
	st := state(t, d)
	if !st.Running || st.PID == 0 {
		t.Fatalf("after the start: %+v", st)
	}
	return st.PID
}

func TestStartAndStop(t *testing.T) {
	d := newServices(t)
	if st := state(t, d); st.Known {
		t.Fatalf("before the start: %+v", st)
	}
	pid := startScript(t, d, "echo hello; exec sleep 1000")
	if err := d.StartService(t.Context(), sleeper("s.service", "true")); err == nil {
		t.Error("it was started twice")
	}
	if err := d.StopService(t.Context(), "s.service", deadline); err != nil {
		t.Fatal(err)
	}
	if _, err := procfs.Read(pid); err == nil {
		t.Errorf("pid %d still runs", pid)
	}
	if st := state(t, d); st.Known {
		t.Errorf("after the stop: %+v", st)
	}
	if left, err := os.ReadDir(d.Dir); err != nil || len(left) != 1 || left[0].Name() != "s.service.log" {
		t.Errorf("files left: %v %v, want only the log", left, err)
	}
	if err := d.StopService(t.Context(), "s.service", time.Second); err != nil {
		t.Errorf("stopping a service that does not exist: %v", err)
	}
}

func TestReportsExit(t *testing.T) {
	tests := []struct{ name, script, want string }{
		{"exit", "exit 100", "exited with 100"},
		{"signal", "kill -9 $$", "killed by signal 9"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newServices(t)
			if err := d.StartService(t.Context(), sleeper("s.service", test.script)); err != nil {
				t.Fatal(err)
			}
			st := awaitState(t, d, "ended", func(st mps.ServiceState) bool { return !st.Running })
			if st.Result != test.want || !st.Known {
				t.Errorf("exit state %+v, want %q", st, test.want)
			}
		})
	}
}

func TestKillsWhatIgnoresTerm(t *testing.T) {
	d := newServices(t)
	startScript(t, d, `trap "" TERM; sleep 1000 & trap : TERM; sleep 1000`)
	start := time.Now()
	if err := d.StopService(t.Context(), "s.service", 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if duration := time.Since(start); duration > 10*time.Second {
		t.Errorf("the stop lasted %v", duration)
	}
	if st := state(t, d); st.Known {
		t.Errorf("after the stop: %+v", st)
	}
}

// A service that was stopped handles its SIGTERM.
func TestContinuesAStoppedService(t *testing.T) {
	d := newServices(t)
	dir := t.TempDir()
	ready, ended := filepath.Join(dir, "ready"), filepath.Join(dir, "ended")
	pid := startScript(t, d, `trap "echo >'`+ended+`'; exit 0" TERM; echo >'`+ready+`'; while :; do sleep 0.05; done`)
	awaitState(t, d, "ready", func(mps.ServiceState) bool { _, err := os.Stat(ready); return err == nil })
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	procfstest.AwaitStopped(t, pid)
	if err := d.StopService(t.Context(), "s.service", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(ended); err != nil {
		t.Errorf("it was killed: %v", err)
	}
}

// Processes that outlive the main process are found, also in their own session.
func TestFindsLeftovers(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("setsid is missing")
	}
	d := newServices(t)
	pid := startScript(t, d, "setsid sleep 1000 & sleep 1000 & read never <&0; wait")
	// The two sleeps run when three processes have the token.
	r, err := d.read("s.service")
	if err != nil || r == nil {
		t.Fatal(err)
	}
	limit := time.Now().Add(deadline)
	for {
		members, err := r.members(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, m := range members {
			if m.Name == "sleep" {
				n++
			}
		}
		if n == 2 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("members: %+v", members)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	st := awaitState(t, d, "ended", func(st mps.ServiceState) bool { return !st.Running })
	if len(st.Leftovers) != 2 {
		t.Errorf("leftovers %v, want the two", st.Leftovers)
	}
	if err := d.StartService(t.Context(), sleeper("s.service", "true")); err == nil {
		t.Error("it was started although there are leftovers")
	}
	if err := d.StopService(t.Context(), "s.service", deadline); err != nil {
		t.Fatal(err)
	}
	for _, p := range st.Leftovers {
		procfstest.AwaitEnd(t, p)
	}
}

// A service does not end with its starter, and the next run finds it.
func TestOutlivesItsStarter(t *testing.T) {
	d := newServices(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	starter := exec.Command(self)
	starter.Env = append(os.Environ(), starterEnv+"="+d.Dir)
	var out strings.Builder
	starter.Stderr = &out
	// A service does not inherit its starter's files, so the pipes end with the starter.
	output, err := starter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	defer starter.Process.Kill()
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "started\n" {
		starter.Wait()
		t.Fatalf("the starter printed %q, %v; %s", line, err, out.String())
	}
	st := state(t, d)
	if !st.Running {
		t.Errorf("after the start: %+v", st)
	}
	starter.Process.Kill()
	starter.Wait()
	if again := state(t, d); again.PID != st.PID || !again.Running {
		t.Errorf("after the starter was killed: %+v, before: %+v; %s", again, st, out.String())
	}
	if p, err := procfs.Read(st.PID); err != nil || p.PPID == os.Getpid() {
		t.Errorf("%+v %v", p, err)
	}
}

// A start that was interrupted before the pid was written is found by the token.
func TestFindsAnUnfinishedStart(t *testing.T) {
	d := newServices(t)
	pid := startScript(t, d, "exec sleep 1000")
	r, err := d.read("s.service")
	if err != nil {
		t.Fatal(err)
	}
	r.PID, r.Start = 0, 0
	if err := d.write(*r); err != nil {
		t.Fatal(err)
	}
	if st := state(t, &Services{Dir: d.Dir}); st.PID != pid || !st.Running {
		t.Errorf("found %+v, want pid %d", st, pid)
	}
}

// A program may end its main thread and continue with others: it runs, although /proc shows that thread as a zombie.
func TestWithoutMainThread(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := newServices(t)
	s := mps.Service{Name: "s.service", Argv: []string{self}, Env: []string{leaderlessEnv + "=1"}, Dir: "/"}
	if err := d.StartService(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	pid := state(t, d).PID
	limit := time.Now().Add(deadline)
	for {
		p, err := procfs.Read(pid)
		if err != nil || time.Now().After(limit) {
			t.Fatalf("its main thread does not end: %+v, %v", p, err)
		}
		if p.State == 'Z' {
			break
		}
		time.Sleep(time.Millisecond) // there is no event for the end of one thread
	}
	if st := state(t, d); !st.Running || st.PID != pid {
		t.Errorf("observed %+v, want it running as %d", st, pid)
	}
	r, err := d.read("s.service")
	if err != nil {
		t.Fatal(err)
	}
	if members, err := r.members(t.Context()); err != nil || len(members) != 1 {
		t.Errorf("by the token: %+v, %v; want one", members, err)
	}
	if err := d.StopService(t.Context(), "s.service", deadline); err != nil {
		t.Fatal(err)
	}
	if p, err := procfs.Read(pid); err == nil {
		t.Errorf("it still runs after the stop: %+v", p)
	}
}

// A pid in a record may be reused.
func TestDoesNotTrustAPID(t *testing.T) {
	boot, err := procfs.BootID("/")
	if err != nil {
		t.Fatal(err)
	}
	start, err := procfs.Start(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		record record
		known  bool
	}{
		{"the pid of another process", record{Name: "s.service", Token: "T", PID: os.Getpid(), Start: start + 1, Boot: boot}, true},
		{"another boot", record{Name: "s.service", Token: "T", PID: os.Getpid(), Start: start, Boot: "other"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newServices(t)
			if err := os.MkdirAll(d.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := d.write(test.record); err != nil {
				t.Fatal(err)
			}
			if st := state(t, d); st.Running || len(st.Leftovers) > 0 || st.Known != test.known {
				t.Errorf("%+v", st)
			}
			if err := d.StopService(t.Context(), "s.service", time.Second); err != nil {
				t.Errorf("stop: %v", err) // and this test was not killed
			}
		})
	}
	t.Run("garbage", func(t *testing.T) {
		d := newServices(t)
		if err := os.MkdirAll(d.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, garbage := range []string{"", "{", "null", `{"pid": "x"}`} {
			if err := os.WriteFile(d.recordPath("s.service"), []byte(garbage), 0o600); err != nil {
				t.Fatal(err)
			}
			if st := state(t, d); st.Known {
				t.Errorf("%q gives %+v", garbage, st)
			}
		}
	})
}

func TestCgroup(t *testing.T) {
	base := filepath.Join(v2Directory(t), "services")
	d := newServices(t)
	d.Cgroup = base
	pid := startScript(t, d, "sleep 1000 & exec sleep 1000")
	if got, err := procfs.Cgroup(pid); err != nil || filepath.Base(got) != "s.service" {
		t.Errorf("it is in cgroup %q (%v)", got, err)
	}
	if err := d.StopService(t.Context(), "s.service", deadline); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(base); !os.IsNotExist(err) {
		t.Errorf("its cgroup still exists: %v", err)
	}
}

// The limit of open files reaches the process, as far as its user may raise it.
func TestOpenFiles(t *testing.T) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint64{64, 16384} {
		d := newServices(t)
		s := sleeper("s.service", "exec sleep 1000")
		s.OpenFiles = want
		if err := d.StartService(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			want = min(want, own.Max)
		}
		var got unix.Rlimit
		if err := unix.Prlimit(state(t, d).PID, unix.RLIMIT_NOFILE, nil, &got); err != nil || got.Cur != want {
			t.Errorf("the process may open %d files (%v), want %d", got.Cur, err, want)
		}
		if err := d.StopService(t.Context(), "s.service", deadline); err != nil {
			t.Fatal(err)
		}
	}
}

// v2Directory creates a cgroup for this test.
func v2Directory(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root is missing: cannot make a cgroup")
	}
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(root, "gpushare-mps-test-")
		if err != nil {
			t.Skipf("a writable cgroup v2 hierarchy is missing: %v", err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Errorf("cannot remove the test's cgroup: %v", err)
			}
		})
		return dir
	}
	t.Skip("a cgroup v2 hierarchy is missing")
	return ""
}

func TestTrimsLog(t *testing.T) {
	d := newServices(t)
	startScript(t, d, "exec sleep 1000")
	if err := os.WriteFile(d.logPath("s.service"), []byte(strings.Repeat("x", maxLog)+"the end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	state(t, d)
	if info, err := os.Stat(d.logPath("s.service")); err != nil || info.Size() != 0 {
		t.Errorf("the log: %v %v", info.Size(), err)
	}
	if b, err := os.ReadFile(d.logPath("s.service") + ".1"); err != nil || !strings.HasSuffix(string(b), "the end\n") || len(b) > maxLog/8 {
		t.Errorf("kept %d bytes, %v", len(b), err)
	}
}

func TestRecordsAreJSON(t *testing.T) {
	d := newServices(t)
	startScript(t, d, "exec sleep 1000")
	b, err := os.ReadFile(d.recordPath("s.service"))
	if err != nil {
		t.Fatal(err)
	}
	var r map[string]any
	if err := json.Unmarshal(b, &r); err != nil || r["token"] == "" || r["boot"] == "" {
		t.Errorf("%s: %v", b, err)
	}
}
