package node

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/harness"
)

// endsAtOnce expects that a command ends at once: before its next reading, and before any timeout of a request.
func endsAtOnce(t *testing.T, what string, job *harness.Job, code int) {
	t.Helper()
	select {
	case <-job.Done():
		if job.Code() != code {
			t.Errorf("%s ends with %d and not with %d: %s", what, job.Code(), code, job.Output())
		}
	case <-time.After(time.Second):
		t.Errorf("%s does not end within a second: %s", what, job.Output())
		job.Kill()
	}
}

// program is a command of gpushare in its own process.
func program(n *harness.Node, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(n.Bin, "gpushare"), args...)
	cmd.Env = n.Environ()
	return cmd
}

// An interrupt ends at once what follows the node, also while the daemon does not answer. It takes nothing with it: a lease whose
// output was followed goes on.
func TestInterruptedFollowers(t *testing.T) {
	n := start(t, quick)
	apply(t, n, shared)
	id := detach(t, n, "echo begun; exec sleep 1000", "-t", "red", "--grant", "part")
	defer n.CLI(soon(t), "lease", "stop", id)
	for _, answers := range []bool{true, false} {
		for _, c := range []struct {
			args []string
			code int
			says string
		}{
			{[]string{"events"}, 0, "gpu.xid"},
			{[]string{"top", "--batch", "--every", "1h"}, 0, "timeslice"},
			{[]string{"lease", "logs", "-f", id}, 130, "begun"},
		} {
			what := strings.Join(c.args, " ")
			job, err := n.Spawn(program(n, c.args...))
			if err != nil {
				t.Fatal(err)
			}
			defer job.Kill()
			err = harness.Await(soon(t), 20*time.Millisecond, what+" does not begin", func() (bool, error) {
				if c.args[0] == "events" { // Those before it began are not its.
					if err := n.Ctl(soon(t), nil, "xid", "1", "31"); err != nil {
						return false, err
					}
				}
				return strings.Contains(job.Output(), c.says), nil
			})
			if err != nil {
				t.Fatalf("%v: %s", err, job.Output())
			}
			daemon := func(sig syscall.Signal) {
				if answers {
					return
				}
				if err := syscall.Kill(n.DaemonPID(), sig); err != nil {
					t.Fatal(err)
				}
			}
			daemon(syscall.SIGSTOP)
			if err := syscall.Kill(job.PID(), syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			endsAtOnce(t, what, job, c.code)
			if c.code == 130 &&
				!strings.Contains(job.Output(), "gpushare: interrupted\nhint: the lease continues: 'gpushare lease stop "+id+"' ends it") {
				t.Errorf("%s says: %s", what, job.Output())
			}
			daemon(syscall.SIGCONT)
		}
	}
	if l := leaseByID(status(t, n), id); l == nil || l.State != "running" {
		t.Errorf("the lease is %+v", l)
	}
}

// Signals and the key Ctrl-C end top on a terminal at once, and the terminal is as it was.
func TestInterruptedTop(t *testing.T) {
	n := start(t, quick)
	apply(t, n, shared)
	for _, c := range []struct {
		name string
		end  func(s *screen, job *harness.Job) error
	}{
		{"SIGINT", func(_ *screen, job *harness.Job) error { return syscall.Kill(job.PID(), syscall.SIGINT) }},
		{"SIGTERM", func(_ *screen, job *harness.Job) error { return syscall.Kill(job.PID(), syscall.SIGTERM) }},
		{"Ctrl-C", func(s *screen, _ *harness.Job) error { _, err := s.keys.WriteString("\x03"); return err }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, tty := openTerminal(t)
			settings := func() *unix.Termios {
				t.Helper()
				out, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			was := settings()
			job, err := n.OnTerminal(tty, "top", "--every", "1h")
			if err != nil {
				t.Fatal(err)
			}
			defer job.Kill()
			if err := s.await(soon(t), "timeslice"); err != nil {
				t.Fatal(err)
			}
			if *settings() == *was {
				t.Error("top does not change the terminal, so this test shows nothing")
			}
			if err := c.end(s, job); err != nil {
				t.Fatal(err)
			}
			endsAtOnce(t, "top", job, 0)
			if now := settings(); *now != *was {
				t.Errorf("the terminal has %+v, and had %+v", now, was)
			}
			for _, code := range []string{"\x1b[?25h", "\x1b[?1049l"} { // It shows the cursor, and what was there before.
				if err := s.await(soon(t), code); err != nil {
					t.Error(err)
				}
				if seen := s.String(); strings.LastIndex(
					seen,
					code,
				) < strings.LastIndex(
					seen,
					code[:len(code)-1]+map[byte]string{'h': "l", 'l': "h"}[code[len(code)-1]],
				) {
					t.Errorf("%q is not the last of its kind: %q", code, seen)
				}
			}
		})
	}
}
