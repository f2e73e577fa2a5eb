package node

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

var controlSequence = regexp.MustCompile(`\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x1b]*\x1b\\|[()][0-9A-B]|[=>78])`)

// frameEnd is what the program writes after each frame.
const frameEnd = "\x1b[?2026l"

// frames reads the frames of top on a terminal.
type frames struct {
	*testing.T
	*screen
}

// await waits for a frame with all of these texts, and none of those that begin with "!".
func (f frames) await(texts ...string) {
	f.Helper()
	last := ""
	err := harness.Await(soon(f.T), 100*time.Millisecond, "a frame with "+strings.Join(texts, ", "), func() (bool, error) {
		seen := f.String()
		if _, err := f.keys.WriteString("\x0c"); err != nil { // It draws the whole frame again.
			return false, err
		}
		err := harness.Await(soon(f.T), 10*time.Millisecond, "a frame", func() (bool, error) {
			_, after, _ := strings.Cut(f.String()[len(seen):], "\x1b[H\x1b[J")
			last, _, _ = strings.Cut(after, frameEnd)
			return strings.Contains(after, frameEnd), nil
		})
		text := controlSequence.ReplaceAllString(last, "")
		for _, want := range texts {
			not, lacks := strings.CutPrefix(want, "!")
			if lacks == strings.Contains(text, not) {
				return false, errors.Join(err, errors.New(text))
			}
		}
		return true, err
	})
	if err != nil {
		f.Fatal(err)
	}
}

func (f frames) press(keys string) {
	f.Helper()
	if _, err := f.keys.WriteString(keys); err != nil {
		f.Fatal(err)
	}
}

// wideTerminal is a terminal of 160x40 characters.
func wideTerminal(t *testing.T) (frames, *os.File) {
	t.Helper()
	s, tty := openTerminal(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 160}); err != nil {
		t.Fatal(err)
	}
	return frames{t, s}, tty
}

// Top shows what the GPUs draw and why they are slow, stops a lease by key, and survives a restart of the daemon.
func TestTopOnATerminal(t *testing.T) {
	n := start(t, quick)
	apply(t, n, shared)
	lease, id := begin(t, n, "red", "part", "sleep", "600")
	for _, sensor := range [][]string{{"power", "287"}, {"module-limit", "300"}, {"throttle", "power-cap"}, {"temperature", "71"}} {
		if err := n.Ctl(soon(t), nil, append([]string{"sensor", "2"}, sensor...)...); err != nil {
			t.Fatal(err)
		}
	}
	f, tty := wideTerminal(t)
	job, err := n.OnTerminal(tty, "top", "--every", "500ms")
	if err != nil {
		t.Fatal(err)
	}
	defer job.Kill()
	f.await("287/300W", "71°C", "power", "1410/1410MHz", id, "└3g.20gb@", "q quit")
	f.press("?")
	f.await("any key goes back")
	f.press(" /" + id + "\r\x1b[Bk")
	f.await("Stop "+id+" of ", "y stops it")
	f.press("n")
	f.await(id + " is not stopped")
	if l := leaseByID(status(t, n), id); l == nil || l.State != api.LeaseRunning {
		t.Fatalf("the lease is %+v", l)
	}
	f.press("ky")
	if code := awaitEnd(t, lease); code != -int(syscall.SIGTERM) {
		t.Errorf("the command of the lease ended with %d", code)
	}
	f.await(id + " is stopped")
	n.KillDaemon()
	f.await("no connection since ", "287/300W")
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	f.await("!no connection", "287/300W")
	f.press("q")
	if code := awaitEnd(t, job); code != 0 {
		t.Errorf("top ends with %d", code)
	}
}

// A member who sees the leases of others cannot stop them: the daemon refuses, and top shows why.
func TestTopOfAMember(t *testing.T) {
	b := newAttackFixture(t)
	apply(t, b.Node, replaced(t, battleSpec, "enforce: on", "enforce: on, status_visible: all"))
	f, tty := wideTerminal(t)
	cmd := b.as(t, member, "top", "--every", "500ms")
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = tty, tty, tty, append(cmd.Env, "TERM=xterm-256color")
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // It has ended.
	id := b.its.ID
	f.await(id)
	f.press("/" + id + "\r\x1b[Bky")
	f.await("that you may stop", "!is stopped", "!q quit", id)
	f.press("q")
	f.press("q")
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Errorf("it ends with %d", exit.ExitCode())
		}
	case <-soon(t).Done():
		t.Fatal("it does not end")
	}
	if l := leaseByID(status(t, b.Node), id); l == nil || l.State != api.LeaseRunning {
		t.Errorf("the lease of another user is %+v", l)
	}
}
