package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
)

// shell forks one process for each line that it reads, in its own cgroup.
type shell struct {
	Process
	in io.WriteCloser
}

// startShell starts a shell in the cgroup. The script forks.
func startShell(t *testing.T, h Hierarchy, cg, script string, as *syscall.SysProcAttr) *shell {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = as
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{Process: start(t, cmd), in: in}
	t.Cleanup(func() { in.Close() })
	if err := h.Place(s.Process, cg); err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	forks      = `while read x; do sleep 60 & done`
	forksTwice = `while read x; do sh -c "sleep 60 & exec sleep 60" & done` // the process with the pid forks once more
	orphans    = `while read x; do sh -c "sleep 60 & :" & done; sleep 60`   // the parent of the process with the pid exits
)

// fork makes the shell fork a process with the pid of one that has exited. skip is the number of processes that it forks before.
func (s *shell) fork(t *testing.T, old Process, skip int) Process {
	t.Helper()
	ctx := within(t, 20*time.Second)
	procfstest.AwaitOtherStart(old.Start)
	for ctx.Err() == nil {
		procfstest.NextPID(t, old.PID-skip)
		if _, err := io.WriteString(s.in, "\n"); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); pause(time.Millisecond) {
			st, err := procfs.Read(old.PID)
			if err != nil {
				continue
			}
			if st.Start != old.Start && st.Name == "sleep" {
				p := identity(st)
				t.Cleanup(func() { _ = signal(context.Background(), p, unix.SIGKILL) }) // It may have ended.
				return p
			}
		}
	}
	t.Skipf("needs a host on which pid %d stays free", old.PID)
	return Process{}
}

// end kills the process and waits until it is reaped.
func end(t *testing.T, p Process) {
	t.Helper()
	if err := signal(context.Background(), p, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is reaped", func() bool { _, err := procfs.Read(p.PID); return err != nil })
}

// A process that gets the pid of another one while that is moved ends up in the cgroup that it came from. The pid is reused
// for real, at each point of the move.
func TestPlaceOfAReusedPID(t *testing.T) {
	if !procfstest.InPIDNamespace(t) {
		return
	}
	user := &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	type reuse func()
	tests := map[string]struct {
		script string
		as     *syscall.SysProcAttr
		inside bool // the shell is in the lease
		skip   int
		write  func(t *testing.T, again reuse, write func() error) error
		want   string // of the cgroup of the other process: outside or lease
		left   string // part of the error, when it could not be taken out
	}{
		"before the write": {script: forks, want: "outside", write: func(_ *testing.T, again reuse, write func() error) error {
			again()
			return write()
		}},
		"before the write, of a user": {
			script: forks,
			as:     user,
			want:   "outside",
			write: func(_ *testing.T, again reuse, write func() error) error {
				again()
				return write()
			},
		},
		"after the write, elsewhere": {script: forks, want: "outside", write: func(_ *testing.T, again reuse, write func() error) error {
			err := write()
			again()
			return err
		}},
		"after the write, forked in the lease": {
			script: forks,
			inside: true,
			want:   "lease",
			write: func(_ *testing.T, again reuse, write func() error) error {
				err := write()
				again()
				return err
			},
		},
		"with what it forked": {script: forksTwice, want: "outside", write: func(_ *testing.T, again reuse, write func() error) error {
			again()
			return write()
		}},
		"without its parent, in a session": {
			script: orphans,
			as:     user,
			skip:   1,
			want:   "outside",
			write: func(_ *testing.T, again reuse, write func() error) error {
				again()
				return write()
			},
		},
		"without its parent or a session": {
			script: orphans,
			as:     &syscall.SysProcAttr{Credential: user.Credential},
			skip:   1,
			want:   "lease",
			left:   "which has the pid of a process that exited",
			write: func(_ *testing.T, again reuse, write func() error) error {
				again()
				return write()
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h, top := foreignCgroup(t, "outside", "lease")
			outside, lease := path.Join(top, "outside"), path.Join(top, "lease")
			from := outside
			if tt.inside {
				from = lease
			}
			s := startShell(t, h, from, tt.script, tt.as)
			before := spawn(t, "sleep", "60")
			p := spawn(t, "sleep", "60")
			end(t, before) // so that the pid before that of p is free
			var other Process
			err := h.move(p, lease, func(name, value string) error {
				if other != (Process{}) {
					return writeFile(name, value) // the move back
				}
				return tt.write(t, func() {
					end(t, p)
					other = s.fork(t, p, tt.skip)
					if tt.script == orphans {
						eventually(
							t, "its parent exits", func() bool { st, err := procfs.Read(other.PID); return err == nil && st.PPID == 1 },
						)
					}
				}, func() error { return writeFile(name, value) })
			}, 0)
			if tt.left == "" && !errors.Is(err, procfs.ErrNoProcess) ||
				tt.left != "" && (errors.Is(err, procfs.ErrNoProcess) || !strings.Contains(fmt.Sprint(err), tt.left)) {
				t.Errorf("the move returned %v", err)
			}
			want := map[string]string{"outside": outside, "lease": lease}[tt.want]
			if at, err := procfs.Cgroup(other.PID); err != nil || at != want || !procfs.Alive(other.PID, other.Start) {
				t.Errorf("the process with the reused pid is in %s, %v; want %s", at, err, want)
			}
			if ps, err := h.Processes(lease); tt.want == "outside" && (err != nil || len(ps) > 0) {
				t.Errorf("the lease has %v, %v", ps, err)
			}
		})
	}
}

// The move back is a move: a third process that gets the pid during it ends up where it came from.
func TestPlaceOfAPIDReusedTwice(t *testing.T) {
	if !procfstest.InPIDNamespace(t) {
		return
	}
	h, top := foreignCgroup(t, "one", "two", "lease")
	lease := path.Join(top, "lease")
	one := startShell(t, h, path.Join(top, "one"), `while read x; do sleep 60 & wait $!; done`, nil)
	two := startShell(t, h, path.Join(top, "two"), forks, nil)
	p := spawn(t, "sleep", "60")
	var second, third Process
	err := h.move(p, lease, func(name, value string) error {
		switch {
		case second == Process{}:
			end(t, p)
			second = one.fork(t, p, 0)
		case third == Process{}:
			end(t, second)
			third = two.fork(t, second, 0)
		}
		return writeFile(name, value)
	}, 0)
	if at, err := procfs.Cgroup(third.PID); err != nil || at != path.Join(top, "two") || !procfs.Alive(third.PID, third.Start) {
		t.Errorf("the third process is in %s, %v", at, err)
	}
	if !errors.Is(err, procfs.ErrNoProcess) {
		t.Errorf("the move returned %v", err)
	}
	if ps, err := h.Processes(lease); err != nil || len(ps) > 0 {
		t.Errorf("the lease has %v, %v", ps, err)
	}
}
