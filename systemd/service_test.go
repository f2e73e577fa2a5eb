package systemd

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// notifySocket is the service manager's end: receive returns what was sent.
func notifySocket(t *testing.T) (receive func() string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		var buf [4096]byte
		n, err := conn.Read(buf[:])
		if err != nil {
			t.Fatalf("nothing was sent: %v", err)
		}
		return string(buf[:n])
	}
}

func TestNotify(t *testing.T) {
	receive := notifySocket(t)
	t.Setenv("WATCHDOG_USEC", "30000000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if _, ok := os.LookupEnv(name); ok {
			t.Errorf("%s is left for child processes", name)
		}
	}
	if !n.Enabled() || n.WatchdogInterval() != 15*time.Second {
		t.Errorf("enabled %v, interval %v", n.Enabled(), n.WatchdogInterval())
	}
	for _, tt := range []struct {
		send func() error
		want string
	}{
		{n.Ready, "READY=1"},
		{func() error { return n.Status("two\nlines") }, "STATUS=two lines"},
		{n.Watchdog, "WATCHDOG=1"},
		{n.Stopping, "STOPPING=1"},
	} {
		if err := tt.send(); err != nil {
			t.Fatal(err)
		}
		if got := receive(); got != tt.want {
			t.Errorf("sent %q, want %q", got, tt.want)
		}
	}
}

func TestNotifyWithoutSocket(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n, err := NewNotifier()
	if err != nil || n.Enabled() || n.WatchdogInterval() != 0 {
		t.Errorf("%+v, %v", n, err)
	}
	if err := n.Ready(); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
}

func TestNotifierEnvironment(t *testing.T) {
	tests := []struct {
		name, socket, usec, pid string
		bad                     bool
		interval                time.Duration
	}{
		{name: "another process's watchdog", usec: "1000000", pid: "1"},
		{name: "no pid", usec: "1000000", interval: 500 * time.Millisecond},
		{name: "no number", usec: "soon", bad: true},
		{name: "zero", usec: "0", bad: true},
		{name: "a socket of another kind", socket: "vsock:1", bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NOTIFY_SOCKET", tt.socket)
			t.Setenv("WATCHDOG_USEC", tt.usec)
			t.Setenv("WATCHDOG_PID", tt.pid)
			n, err := NewNotifier()
			if (err != nil) != tt.bad || n.WatchdogInterval() != tt.interval {
				t.Errorf("interval %v, %v", n.WatchdogInterval(), err)
			}
		})
	}
}

// renamed is a duplicate of a descriptor under the name that the service manager gave it.
func renamed(t *testing.T, f *os.File, name string) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), name)
}

func TestPassedSockets(t *testing.T) {
	name := filepath.Join(t.TempDir(), "api.sock")
	own, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	passed, err := own.File()
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	s := group([]*os.File{renamed(t, passed, "gpushared.socket"), renamed(t, passed, "unused")})

	if l, err := s.Listener("metrics"); l != nil || err != nil {
		t.Errorf("a socket that was not passed: %v, %v", l, err)
	}
	l, err := s.Listener("gpushared.socket")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if c, err := net.Dial("unix", name); err == nil {
			c.Close()
		}
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	l.Close()
	if _, err := os.Stat(name); err != nil {
		t.Errorf("closing the listener removed the unit's socket: %v", err)
	}
	if left := s.Close(); !cmp.Equal(left, []string{"unused"}) {
		t.Errorf("left %v", left)
	}
	if l, err := s.Listener("gpushared.socket"); l != nil || err != nil {
		t.Errorf("taken twice: %v, %v", l, err)
	}
	two := group([]*os.File{renamed(t, passed, "x"), renamed(t, passed, "x")})
	defer two.Close()
	if _, err := two.Listener("x"); err == nil {
		t.Error("two sockets of one name were taken as one")
	}
}

func TestJournalHandler(t *testing.T) {
	type entry struct {
		Text   string
		P      journal.Priority
		Fields map[string]string
	}
	var got []entry
	log := slog.New(&journalHandler{level: slog.LevelInfo, send: func(m string, p journal.Priority, f map[string]string) error {
		got = append(got, entry{m, p, f})
		return nil
	}})
	log.Debug("not this one")
	log.With("tenant", "vision").WithGroup("gpu").Warn("cannot create", "uuid", "GPU-1", slog.Group("place", "start", 4), slog.Attr{})
	log.Error("failed", "error", errors.New("no memory"), "weird-näme", "a\nb")
	log.WithGroup("").Info("plain")
	log.Info("known", "message_id", "184f3b842da94481ad8762e51bcf4637", "by", "root")
	want := []entry{
		{
			"cannot create tenant=vision gpu.uuid=GPU-1 gpu.place.start=4", journal.PriWarning,
			map[string]string{"GPUSHARE_TENANT": "vision", "GPUSHARE_GPU_UUID": "GPU-1", "GPUSHARE_GPU_PLACE_START": "4"},
		},
		{
			`failed error="no memory" weird-näme="a\nb"`, journal.PriErr,
			map[string]string{"ERROR": "no memory", "GPUSHARE_WEIRD_N__ME": "a\nb"},
		},
		{"plain", journal.PriInfo, map[string]string{}},
		{"known by=root", journal.PriInfo, map[string]string{"MESSAGE_ID": "184f3b842da94481ad8762e51bcf4637", "GPUSHARE_BY": "root"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Outside the journal the id of a message is not written: its text is there.
func TestTextHasNoMessageID(t *testing.T) {
	var out strings.Builder
	slog.New(LogHandler(&out, slog.LevelInfo)).Info("known", "message_id", "184f3b842da94481ad8762e51bcf4637", "by", "root")
	if got := out.String(); !strings.HasSuffix(got, "msg=known by=root\n") {
		t.Errorf("the log has %q", got)
	}
}

func TestJournalHandlersDoNotShareAttributes(t *testing.T) {
	var got []string
	base := slog.New(&journalHandler{level: slog.LevelInfo, send: func(m string, _ journal.Priority, _ map[string]string) error {
		got = append(got, m)
		return nil
	}}).With("a", 1)
	x, y := base.With("b", 2), base.With("c", 3)
	x.Info("x")
	y.Info("y")
	if d := cmp.Diff([]string{"x a=1 b=2", "y a=1 c=3"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestLogHandlerIsTextOnATerminal(t *testing.T) {
	t.Setenv("JOURNAL_STREAM", "")
	var b bytes.Buffer
	slog.New(LogHandler(&b, slog.LevelWarn)).Info("not this")
	slog.New(LogHandler(&b, slog.LevelWarn)).Warn("this")
	if s := b.String(); strings.Contains(s, "not this") || !strings.Contains(s, "msg=this") {
		t.Errorf("logged %q", s)
	}
}
