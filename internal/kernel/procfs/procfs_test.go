package procfs

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestParseStat(t *testing.T) {
	const tail = " S 7 1 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 10"
	tests := []struct {
		name string
		line string
		want Stat
		bad  bool
	}{
		{
			name: "plain",
			line: "12 (python)" + tail,
			want: Stat{PID: 12, PPID: 7, Session: 3, State: 'S', Threads: 1, Start: 4711, Name: "python"},
		},
		{
			name: "parentheses and spaces in the name",
			line: "12 (a) R (b)" + tail,
			want: Stat{PID: 12, PPID: 7, Session: 3, State: 'S', Threads: 1, Start: 4711, Name: "a) R (b"},
		},
		{name: "empty", line: "", bad: true},
		{name: "no name", line: "12 S 7", bad: true},
		{name: "short", line: "12 (x) S 7 1", bad: true},
		{name: "threads are not a number", line: strings.Replace("12 (x)"+tail, "20 0 1", "20 0 x", 1), bad: true},
		{name: "start is not a number", line: strings.Replace("12 (x)"+tail, "4711", "x", 1), bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat([]byte(tt.line))
			if (err != nil) != tt.bad || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestDead(t *testing.T) {
	tests := []struct {
		name string
		stat Stat
		want bool
	}{
		{"sleeping", Stat{State: 'S', Threads: 1}, false},
		{"stopped", Stat{State: 'T', Threads: 3}, false},
		{"to be reaped", Stat{State: 'Z', Threads: 1}, true},
		{"being reaped", Stat{State: 'X'}, true},
		{"its first thread has exited", Stat{State: 'Z', Threads: 2}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.stat.Dead(); got != tt.want {
				t.Errorf("%+v is dead: %v", tt.stat, got)
			}
		})
	}
}

func TestParseStatNeverPanics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, _ = parseStat([]byte(rapid.StringMatching(`[0-9() SZ\n-]{0,80}`).Draw(t, "line")))
	})
}

func TestOwnProcess(t *testing.T) {
	me := os.Getpid()
	s, err := Read(me)
	if err != nil {
		t.Fatal(err)
	}
	if s.PID != me || s.PPID != os.Getppid() || s.Dead() {
		t.Errorf("read %+v of pid %d with parent %d", s, me, os.Getppid())
	}
	if !Alive(me, s.Start) || Alive(me, s.Start+1) {
		t.Error("a process is alive only with its own start time")
	}
	if uid, err := UID(me); err != nil || int(uid) != os.Getuid() {
		t.Errorf("uid %d, %v", uid, err)
	}
	if c := Command(t.Context(), me); !strings.Contains(c, "procfs.test") {
		t.Errorf("command %q", c)
	}
	want, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(want), "0::") {
		t.Skip("needs a cgroup v2 hierarchy")
	}
	if path, err := Cgroup(me); err != nil || !strings.Contains(string(want), "0::"+path) {
		t.Errorf("cgroup %q, %v, not in %q", path, err, want)
	}
}

func TestLastPID(t *testing.T) {
	// Other programs start processes too: this pid is above the last pid before, and not above the last pid after.
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	before := LastPID()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	after := LastPID()
	if before <= 0 || before < after && (cmd.Process.Pid <= before || cmd.Process.Pid > after) {
		t.Errorf("pid %d is not between %d and %d", cmd.Process.Pid, before, after)
	}
}

func TestNoProcess(t *testing.T) {
	for _, pid := range []int{0, -1, 1 << 30} {
		if _, err := Read(pid); !errors.Is(err, ErrNoProcess) {
			t.Errorf("Read(%d): %v", pid, err)
		}
		if _, err := Cgroup(pid); !errors.Is(err, ErrNoProcess) {
			t.Errorf("Cgroup(%d): %v", pid, err)
		}
		if _, err := OpenPidfd(pid, 1); !errors.Is(err, ErrNoProcess) {
			t.Errorf("OpenPidfd(%d): %v", pid, err)
		}
	}
	if Command(t.Context(), 1<<30) != "" {
		t.Error("a process that does not exist has a command")
	}
}

func TestPidfd(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := Start(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := All(); err != nil ||
		!slices.ContainsFunc(all, func(o Stat) bool { return o.PID == cmd.Process.Pid && o.PPID == os.Getpid() && !o.Dead() }) {
		t.Errorf("the child pid %d is not among %v, %v", cmd.Process.Pid, all, err)
	}
	if _, err := OpenPidfd(cmd.Process.Pid, start+1); !errors.Is(err, ErrNoProcess) {
		t.Errorf("a process with another start time was opened: %v", err)
	}
	p, err := OpenPidfd(cmd.Process.Pid, start)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()

	short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := p.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a running process: %v", err)
	}
	if p.Ended() {
		t.Error("a running process has ended")
	}
	if err := p.Signal(t.Context(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	long, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Wait(long); err != nil {
		t.Fatal(err)
	}
	if !p.Ended() || Alive(cmd.Process.Pid, start) {
		t.Error("a killed process, not reaped yet, counts as alive")
	}
	_ = cmd.Wait() // the error says that it was killed
	if err := p.Signal(t.Context(), unix.SIGKILL); !errors.Is(err, ErrNoProcess) {
		t.Errorf("signalling a reaped process: %v", err)
	}
}

// leaderlessEnv makes this binary a process whose first thread exits while others go on.
const leaderlessEnv = "PROCFS_TEST_LEADERLESS"

// Only during package initialisation is a goroutine certain to run on the first thread.
func init() {
	if os.Getenv(leaderlessEnv) == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		syscall.Exit(0) // os.Exit waits under the race detector
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// A program may end its first thread and go on with others: the process keeps its resources, and is not dead.
func TestFirstThreadEnded(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), leaderlessEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var s Stat
	// There is no event for the end of one thread.
	for end := time.Now().Add(10 * time.Second); s.State != 'Z'; time.Sleep(time.Millisecond) {
		if s, err = Read(cmd.Process.Pid); err != nil || time.Now().After(end) {
			t.Fatalf("its first thread does not exit: %+v, %v", s, err)
		}
	}
	p, err := OpenPidfd(s.PID, s.Start)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if s.Dead() || p.Ended() || !Alive(s.PID, s.Start) {
		t.Errorf("%+v: dead %v, ended %v, alive %v", s, s.Dead(), p.Ended(), Alive(s.PID, s.Start))
	}
	if all, err := All(); err != nil ||
		!slices.ContainsFunc(all, func(o Stat) bool { return o.PID == s.PID && o.PPID == os.Getpid() && !o.Dead() }) {
		t.Errorf("the child pid %d is not among %v, %v", s.PID, all, err)
	}
	stdin.Close()
	long, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Wait(long); err != nil {
		t.Fatal(err)
	}
	if s, err = Read(s.PID); err != nil || !s.Dead() {
		t.Errorf("ended, and %+v, %v is not dead", s, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestBoot(t *testing.T) {
	id, err := BootID("/")
	if err != nil || len(id) != 36 {
		t.Errorf("boot id %q, %v", id, err)
	}
	a := BootTime()
	if b := BootTime(); a <= 0 || b < a {
		t.Errorf("boot time %v, then %v", a, b)
	}
}

func BenchmarkCgroupBytes(b *testing.B) {
	var buf [4096]byte
	me := os.Getpid()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := CgroupBytes(me, buf[:]); err != nil {
			b.Fatal(err)
		}
	}
}
