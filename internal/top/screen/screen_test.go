package screen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3/vt"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/top"
)

func TestMain(m *testing.M) {
	// As the command sets it: the library of the terminal writes characters of UTF-8 in no other locale, and no color with NO_COLOR.
	if err := errors.Join(os.Setenv("LC_ALL", "C.UTF-8"), os.Unsetenv("NO_COLOR")); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what does not come.
const patience = 30 * time.Second

// terminal is a terminal, with an emulator behind it that shows what is written.
type terminal struct {
	*testing.T
	keys, tty *os.File // the ends of the emulator and of the program

	mu       sync.Mutex // guards what follows
	emulator vt.MockTerm
	raw      strings.Builder
	changed  chan struct{} // closed at the next output
	ended    chan struct{}
}

func newTerminal(t *testing.T, width, height uint16) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	term := &terminal{T: t, keys: keys, tty: tty, changed: make(chan struct{}), ended: make(chan struct{})}
	term.resize(width, height)
	go term.emulate()
	t.Cleanup(func() {
		tty.Close()
		<-term.ended
		keys.Close()
		_ = term.emulator.Close()
	})
	return term
}

// resize sets the size of both.
func (t *terminal) resize(width, height uint16) {
	t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.emulator != nil {
		_ = t.emulator.Close()
	}
	t.emulator = vt.NewMockTerm(vt.MockOptSize{X: vt.Col(width), Y: vt.Row(height)})
	if err := t.emulator.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(t.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		t.Fatal(err)
	}
}

// emulate shows what is written until the program's end is closed.
func (t *terminal) emulate() {
	defer close(t.ended)
	b := make([]byte, 4096)
	for {
		n, err := t.keys.Read(b)
		if err != nil {
			return
		}
		t.mu.Lock()
		_, _ = t.emulator.Write(b[:n])
		_ = t.emulator.Drain()
		t.raw.Write(b[:n])
		close(t.changed)
		t.changed = make(chan struct{})
		t.mu.Unlock()
	}
}

// text is what the emulator shows.
func (t *terminal) text() string {
	size, _ := t.emulator.WindowSize()
	var b strings.Builder
	for y := range size.Height {
		for x := range size.Width {
			b.WriteString(t.emulator.GetCell(vt.Coord{X: vt.Col(x), Y: vt.Row(y)}).C)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// await waits until all of these texts are shown, and none of those that begin with "!".
func (t *terminal) await(texts ...string) {
	t.Helper()
	limit := time.After(patience)
	for {
		t.mu.Lock()
		now, changed := t.text(), t.changed
		t.mu.Unlock()
		missing := ""
		for _, s := range texts {
			not, lacks := strings.CutPrefix(s, "!")
			if lacks == strings.Contains(now, not) {
				missing = s
			}
		}
		if missing == "" {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%q is not so:\n%s", missing, now)
		}
	}
}

// restored is what the terminal gets last: the screen that was there before, and the cursor.
var restored = []struct{ last, before, lacks string }{
	{"\x1b[?1049l", "\x1b[?1049h", "what was there before is not shown again"},
	{"\x1b[?25h", "\x1b[?25l", "the cursor is hidden"},
}

// awaitRestored waits until the terminal has what was there before.
func (t *terminal) awaitRestored() error {
	limit := time.After(patience)
	for {
		t.mu.Lock()
		raw, changed := t.raw.String(), t.changed
		t.mu.Unlock()
		lacks := ""
		for _, r := range restored {
			if strings.LastIndex(raw, r.last) <= strings.LastIndex(raw, r.before) {
				lacks = r.lacks
			}
		}
		if lacks == "" {
			return nil
		}
		select {
		case <-changed:
		case <-limit:
			return errors.New(lacks)
		}
	}
}

func (t *terminal) press(keys string) {
	t.Helper()
	if _, err := t.keys.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

func (t *terminal) settings() unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(t.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

// node is a node of which the test says what it answers.
type node struct {
	mu      sync.Mutex // guards the fields below
	status  *api.Status
	err     error
	hangs   bool
	stopErr error
	stopped []string
	reads   int
}

func (n *node) StatusNow(ctx context.Context) (*api.Status, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads++
	if n.hangs {
		n.mu.Unlock()
		<-ctx.Done()
		n.mu.Lock()
		return nil, ctx.Err()
	}
	if n.err != nil {
		return nil, n.err
	}
	s := *n.status
	s.Leases = slices.Clone(s.Leases) // As an answer over the socket, it does not change any more.
	return &s, nil
}

func (n *node) Idle(context.Context) (*api.Idle, error) { return &api.Idle{}, nil }

func (n *node) StopLease(_ context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = append(n.stopped, id)
	return n.stopErr
}

func (n *node) set(f func()) { n.mu.Lock(); defer n.mu.Unlock(); f() }

func newNode() *node {
	s := &api.Status{Node: api.NodeStatus{Host: "lab1", Generation: 7, Enforce: "on"}}
	for i, id := range []string{"vision-1", "speech-2"} {
		s.GPUs = append(s.GPUs, api.GPUStatus{
			Index: i, UUID: fmt.Sprintf("GPU-%d", i), Mode: "exclusive", State: "ok", Utilization: new(50 + i),
			Memory: api.GPUMemory{Total: 40 << 30, Used: 1 << 30},
		})
		s.Leases = append(
			s.Leases,
			api.Lease{ID: id, Tenant: id[:6], User: "alice", State: "running", GPUs: []string{fmt.Sprintf("GPU-%d", i)}},
		)
	}
	return &node{status: s}
}

// show runs top on the terminal until the test has used it, and gives its error.
func (t *terminal) show(n *node, o Options, use func()) error {
	t.Helper()
	o.In, o.Out, o.Term, o.Zone = t.tty, t.tty, "xterm-256color", time.UTC
	if o.Every == 0 {
		o.Every = time.Hour
	}
	before := t.settings()
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), n, o) }()
	use()
	select {
	case err := <-ended:
		if after := t.settings(); after != before {
			t.Errorf("the terminal is not as it was: %+v, %+v", after, before)
		}
		if err := t.awaitRestored(); err != nil {
			t.Error(err)
		}
		return err
	case <-time.After(patience):
		t.Fatal("top does not end")
	}
	return nil
}

func TestKeysOnATerminal(t *testing.T) {
	term, n := newTerminal(t, 100, 30), newNode()
	err := term.show(n, Options{View: top.Leases}, func() {
		term.await("vision-1", "speech-2", "51%", "q quit")
		term.press("t")
		term.await("no tenants")
		term.press("?")
		term.await("any key goes back")
		term.press(" l/speech\r")
		term.await("filter: speech", "!vision-1")
		term.press("\x1b") // A lone escape is one after a moment in which nothing follows it.
		term.await("vision-1")
		term.press("\x1b[B\x1b[Bk")
		term.await("Stop speech-2 of alice on GPU 1?")
		term.press("n")
		term.await("speech-2 is not stopped")
		term.press("ky")
		term.await("speech-2 is stopped")
		n.set(func() {
			n.stopErr = &api.Error{Kind: api.KindDenied, Message: "cannot stop lease speech-2: it is bob's", Hint: "ask bob"}
		})
		term.press("ky")
		term.await("cannot stop lease speech-2: it is bob's (ask bob)")
		term.press("q")
	})
	if err != nil || strings.Join(n.stopped, " ") != "speech-2 speech-2" {
		t.Errorf("%v, stopped: %v", err, n.stopped)
	}
}

// A terminal that becomes larger or smaller is used as it is then.
func TestResize(t *testing.T) {
	term, n := newTerminal(t, 80, 24), newNode()
	err := term.show(n, Options{}, func() {
		term.await("vision-1", "!BEFORE")
		for _, c := range []struct {
			width, height uint16
			shows         []string
		}{{160, 40, []string{"BEFORE", "vision-1"}}, {40, 10, []string{"40×10 is too small", "!vision-1"}}, {80, 24, []string{"vision-1", "!too small", "!BEFORE"}}} {
			term.resize(c.width, c.height)
			if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
				t.Fatal(err)
			}
			term.await(c.shows...)
		}
		term.press("q")
	})
	if err != nil {
		t.Error(err)
	}
}

// While the daemon is away the last values stay, with the time; it is used again when it is back.
func TestTheDaemonGoesAndComesBack(t *testing.T) {
	term, n := newTerminal(t, 100, 30), newNode()
	err := term.show(n, Options{Every: 20 * time.Millisecond}, func() {
		term.await("vision-1")
		n.set(func() { n.err = errors.New("cannot reach gpushared") })
		term.await("no connection since ", "cannot reach gpushared", "vision-1")
		n.set(func() { n.err = nil; n.status.Leases[0].ID = "vision-9" })
		term.await("vision-9", "!no connection")
		term.press("q")
	})
	if err != nil {
		t.Error(err)
	}
}

// A user who may not read the status any more sees nothing any longer, and the first reading says why there is none.
func TestRefusals(t *testing.T) {
	denied := &api.Error{Kind: api.KindDenied, Message: "cannot read the status: you have no role"}
	term, n := newTerminal(t, 100, 30), newNode()
	err := term.show(n, Options{Every: 20 * time.Millisecond}, func() {
		term.await("vision-1")
		n.set(func() { n.err = denied })
	})
	if !errors.Is(err, denied) {
		t.Errorf("a right that was taken: %v", err)
	}
	away := errors.New("cannot reach gpushared")
	if err := newTerminal(t, 100, 30).show(&node{err: away}, Options{}, func() {}); !errors.Is(err, away) {
		t.Errorf("no daemon: %v", err)
	}
}

// Ctrl-C, q and the end of the terminal end top also while the daemon does not answer, and so does the last reading of a number.
func TestEnds(t *testing.T) {
	for name, end := range map[string]func(*terminal){
		"Ctrl-C": func(t *terminal) { t.press("\x03") },
		"Ctrl-D": func(t *terminal) { t.press("\x04") },
		"q":      func(t *terminal) { t.press("q") },
	} {
		t.Run(name, func(t *testing.T) {
			term, n := newTerminal(t, 100, 30), newNode()
			err := term.show(n, Options{Every: time.Millisecond}, func() {
				term.await("vision-1")
				n.set(func() { n.hangs = true })
				end(term)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("the end of the terminal", func(t *testing.T) {
		term, n := newTerminal(t, 100, 30), newNode()
		o, ended := Options{In: term.tty, Out: term.tty, Term: "xterm-256color", Every: time.Millisecond}, make(chan error, 1)
		go func() { ended <- Run(t.Context(), n, o) }()
		term.await("vision-1")
		n.set(func() { n.hangs = true })
		if err := term.keys.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("top does not end")
		}
	})
	t.Run("a number of readings", func(t *testing.T) {
		n := newNode()
		if err := newTerminal(t, 100, 30).show(n, Options{Every: time.Millisecond, Count: 3}, func() {}); err != nil || n.reads != 3 {
			t.Errorf("%v after %d readings", err, n.reads)
		}
	})
}

// Colours are used where the user wants them.
func TestColors(t *testing.T) {
	for _, want := range []bool{true, false} {
		term, n := newTerminal(t, 100, 30), newNode()
		n.status.GPUs[0].State = "lost"
		if err := term.show(n, Options{Color: want}, func() { term.await("lost"); term.press("q") }); err != nil {
			t.Error(err)
		}
		term.mu.Lock()
		raw := term.raw.String()
		term.mu.Unlock()
		if colored := strings.Contains(raw, "\x1b[31m"); colored != want {
			t.Errorf("coloured: %v, want %v: %q", colored, want, raw)
		}
	}
}
