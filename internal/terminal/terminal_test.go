package terminal

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pseudo opens a new pseudo terminal: its master, and the name of its slave device.
func pseudo(t *testing.T) (shows *os.File, name string) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("cannot open a pseudo terminal: %v", err)
	}
	shows = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { shows.Close() })
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("/dev/pts/%d", n)
	if err := os.Chmod(name, 0o620); err != nil {
		t.Fatal(err)
	}
	return shows, name
}

// on starts a process with the named controlling terminal.
func on(t *testing.T, name string) int {
	t.Helper()
	tty, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	cmd := exec.Command("sleep", "60")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // It was killed.
	})
	return cmd.Process.Pid
}

// shown is what the terminal shows.
func shown(t *testing.T, shows *os.File) string {
	t.Helper()
	if err := shows.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := shows.Read(buf)
	if err != nil {
		t.Fatalf("nothing is shown: %v", err)
	}
	return string(buf[:n])
}

func TestNotifiesEachTerminalOnce(t *testing.T) {
	shows, name := pseudo(t)
	pid := on(t, name)
	if notified := Notify([]int{pid, pid, os.Getpid()}, os.Getuid(), "10 minutes are \x1b[31mleft"); notified != 1 {
		t.Fatalf("%d terminals were notified", notified)
	}
	if got := shown(t, shows); strings.Count(got, "minutes") != 1 || strings.Contains(got, "\x1b") || !strings.HasPrefix(got, "\r") ||
		!strings.HasSuffix(got, "\n") {
		t.Errorf("the terminal shows %q", got)
	}
}

func TestRefusedTerminals(t *testing.T) {
	for _, c := range []struct {
		name    string
		owner   int
		prepare func(t *testing.T, shows *os.File, name string)
	}{
		{"mesg n", os.Getuid(), func(t *testing.T, _ *os.File, name string) {
			if err := os.Chmod(name, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"another user's", os.Getuid() + 1, func(*testing.T, *os.File, string) {}},
		{"full", os.Getuid(), func(t *testing.T, _ *os.File, name string) {
			f, err := unix.Open(name, unix.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(f)
			// The kernel moves what was written on to the other side after a moment, until that is full too.
			for writable := 1; writable > 0 && (err == nil || errors.Is(err, unix.EAGAIN)); {
				for err == nil {
					_, err = unix.Write(f, make([]byte, 512))
				}
				if writable, err = unix.Poll([]unix.PollFd{{Fd: int32(f), Events: unix.POLLOUT}}, 200); errors.Is(err, unix.EINTR) {
					writable, err = 1, nil
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			shows, name := pseudo(t)
			pid := on(t, name)
			c.prepare(t, shows, name)
			done := make(chan int, 1)
			go func() { done <- Notify([]int{pid}, c.owner, "hello") }()
			select {
			case notified := <-done:
				if notified != 0 {
					t.Error("it was notified")
				}
			case <-time.After(5 * time.Second):
				t.Fatal("it blocks")
			}
		})
	}
}

func TestLineIsHarmless(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"plain", "gpushare: 40 % → 30 %", "\r\ngpushare: 40 % → 30 %\r\n"},
		{"escapes", "a\x1b]0;x\x07b\r\nc\u009b1m", "\r\na\ufffd]0;x\ufffdb\ufffd\ufffdc\ufffd1m\r\n"},
		{"not text", "a\xffb", "\r\na\ufffdb\r\n"},
		{"right to left", "a\u202eb", "\r\na\ufffdb\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Line(c.text); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if n := len([]rune(strings.TrimSpace(Line(strings.Repeat("ä", 5000))))); n != maxLine {
		t.Errorf("a long text has %d characters", n)
	}
}
