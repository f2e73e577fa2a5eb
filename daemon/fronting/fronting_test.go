package fronting

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/front"
	"github.com/gpushare/gpushare/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is when a test has failed.
const soon = time.Minute

// fake is a front in this process.
type fake struct {
	control *net.UnixConn
	done    chan struct{}
	end     sync.Once
}

func (p *fake) PID() int              { return os.Getpid() }
func (p *fake) Done() <-chan struct{} { return p.done }
func (p *fake) Kill() error {
	p.end.Do(func() {
		p.control.Close()
		close(p.done)
	})
	return nil
}

// ready is the start of a front that works.
func (p *fake) ready() bool {
	var t front.Table
	return front.Receive(p.control, &t) == nil && front.Send(p.control, front.Ready{}) == nil
}

// starter starts the fronts of a test, one after the other; the last one again and again. Each does what its function does, and may run on
// after it.
type starter struct {
	fronts []func(p *fake)
	starts chan time.Time
	all    sync.WaitGroup
	n      int
}

var errNoStart = errors.New("it cannot be started")

// StartFront starts the next one. A nil function cannot be started.
func (s *starter) StartFront(_ context.Context, control *os.File) (Process, error) {
	does := s.fronts[min(s.n, len(s.fronts)-1)]
	s.n++
	select {
	case s.starts <- time.Now():
	default:
	}
	if does == nil {
		return nil, errNoStart
	}
	c, err := net.FileConn(control)
	if err != nil {
		return nil, err
	}
	p := &fake{control: c.(*net.UnixConn), done: make(chan struct{})}
	s.all.Go(func() { does(p) })
	return p, nil
}

// neverReads takes no connection.
func neverReads(p *fake) { p.ready() }

// neverAcknowledges reads what it is sent, and drops it.
func neverAcknowledges(p *fake) {
	p.ready()
	for b := make([]byte, 64); ; {
		if n, err := p.control.Read(b); err != nil || n == 0 {
			return
		}
	}
}

// ends ends with the first connection.
func ends(p *fake) {
	p.ready()
	_, _ = p.control.Read(make([]byte, 64))
	_ = p.Kill()
}

// claims acknowledges what it did not get.
func claims(p *fake) {
	p.ready()
	_, _ = p.control.Write([]byte{1})
}

// hangsAtStart does not get ready.
func hangsAtStart(*fake) {}

// serves is the front itself.
func serves(p *fake) {
	defer func() { _ = p.Kill() }()
	if !p.ready() {
		return
	}
	f, err := front.New(front.Table{Routes: []front.Route{{Method: http.MethodGet, Pattern: "/x"}}}, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	_ = f.Serve(context.Background(), p.control) // Its end is the end of the control socket.
}

// run runs fronts one after the other.
func run(t *testing.T, limits times, fronts ...func(p *fake)) (*Front, *starter) {
	t.Helper()
	s := &starter{fronts: fronts, starts: make(chan time.Time, 64)}
	f := &Front{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Starter: s, limits: limits}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ran
		s.all.Wait()
	})
	return f, s
}

// brief has short limits where a test waits for their end, and long ones where it must not.
func brief() times {
	return times{
		start:      soon,
		pass:       soon,
		wait:       soon,
		firstPause: time.Millisecond,
		shortPause: 20 * time.Millisecond,
		mostPause:  soon,
		steady:     soon,
	}
}

// pass passes a connection to the front.
func pass(t *testing.T, f *Front) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return passWithin(ctx, t, f)
}

func passWithin(ctx context.Context, t *testing.T, f *Front) error {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer unix.Close(pair[1])
	file := os.NewFile(uintptr(pair[0]), "caller")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer c.Close()
	own, err := f.HandOver(ctx, c.(*net.UnixConn), 1001)
	if err == nil {
		own.Close()
	}
	return err
}

// A front that hangs is ended, whatever it does with the control socket, and the connections that it did not take go to the next one.
func TestFrontHangs(t *testing.T) {
	for _, c := range []struct {
		name  string
		first func(p *fake)
		full  bool
	}{{"it never reads", neverReads, false}, {"it never reads, and the buffer is full", neverReads, true}, {"it reads and never acknowledges", neverAcknowledges, false}, {"it ends", ends, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			limits := brief()
			limits.pass = time.Second
			f, s := run(t, limits, c.first, serves)
			if c.full {
				l, err := f.serving(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := l.control.SetWriteBuffer(1); err != nil { // The kernel makes it a few packets.
					t.Fatal(err)
				}
			}
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					for err := pass(t, f); err != nil; err = pass(t, f) {
						if !errors.Is(err, errLost) { // A loaded machine may hold up the second one too.
							t.Errorf("a connection that it did not take: %v", err)
							return
						}
					}
				})
			}
			all.Wait()
			if len(s.starts) < 2 {
				t.Error("it is not started again")
			}
			for _, cond := range f.Conditions.List() {
				if strings.Contains(cond.Message, "not served") {
					t.Errorf("there is a condition: %s", cond.Message)
				}
			}
		})
	}
}

// A connection is passed when the front has it, not before, and a front that needs its time is left alone.
func TestFrontIsSlow(t *testing.T) {
	got, release := make(chan struct{}), make(chan struct{})
	f, s := run(t, brief(), func(p *fake) {
		p.ready()
		for range 3 {
			if _, err := p.control.Read(make([]byte, 64)); err != nil {
				return
			}
			got <- struct{}{}
			<-release
			_, _ = p.control.Write([]byte{1})
		}
	})
	for range 3 {
		passed := make(chan error, 1)
		go func() { passed <- pass(t, f) }()
		<-got
		select {
		case err := <-passed:
			t.Errorf("it is passed before the front has it: %v", err)
		default:
		}
		release <- struct{}{}
		if err := <-passed; err != nil {
			t.Error(err)
		}
	}
	if len(s.starts) != 1 {
		t.Errorf("it was started %d times", len(s.starts))
	}
}

// A caller who goes away waits for no front.
func TestCallerGoesAway(t *testing.T) {
	f, _ := run(t, brief(), neverReads)
	l, err := f.serving(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- passWithin(ctx, t, f) }()
	for owes := false; !owes; runtime.Gosched() {
		l.mu.Lock()
		owes = len(l.owed) == 1
		l.mu.Unlock()
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}

// A front that acknowledges what it did not get is ended: it would be taken for one that serves.
func TestFrontClaimsConnections(t *testing.T) {
	f, s := run(t, brief(), claims, serves)
	<-s.starts
	select {
	case <-s.starts:
	case <-time.After(soon):
		t.Fatal("it is not started again")
	}
	if err := pass(t, f); err != nil {
		t.Error(err)
	}
}

// A front that ends again and again is started soon each time, so that callers wait for it and get no error.
func TestFrontThatServedIsStartedSoon(t *testing.T) {
	f, s := run(t, brief(), ends, ends, ends, ends, ends, ends, ends, ends, ends, ends, serves)
	for {
		err := pass(t, f)
		if err == nil {
			break
		}
		if !errors.Is(err, errLost) {
			t.Fatalf("a caller gets %v", err)
		}
	}
	if len(s.starts) != 11 {
		t.Errorf("there were %d starts", len(s.starts))
	}
}

// One that does not start, or is not ready in time, is started again after longer and longer pauses. Callers wait during the short ones,
// and get the reason during the others.
func TestFrontDoesNotStart(t *testing.T) {
	for _, c := range []struct {
		name  string
		front func(p *fake)
		want  string
	}{{"there is none", nil, errNoStart.Error()}, {"it does not get ready", hangsAtStart, "cannot start gpushare-front"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			limits := brief()
			limits.start, limits.firstPause, limits.mostPause = 20*time.Millisecond, 10*time.Millisecond, 80*time.Millisecond
			f, s := run(t, limits, c.front)
			last := <-s.starts
			for i, least := range []int{0, 10, 20, 40, 80, 80} { // ms
				next := <-s.starts
				if pause := next.Sub(last); pause < time.Duration(least)*time.Millisecond {
					t.Errorf("pause %d is %v", i, pause)
				}
				last = next
			}
			for {
				err := pass(t, f)
				if err != nil && strings.Contains(err.Error(), "gpushare-front does not run") && strings.Contains(err.Error(), c.want) {
					break
				}
				if err == nil || !errors.Is(err, errStarting) {
					t.Fatalf("a caller gets %v", err)
				}
			}
			all := f.Conditions.List()
			if len(all) != 1 || !strings.Contains(all[0].Message, "callers who are not administrators are not served") ||
				!strings.Contains(all[0].Message, c.want) {
				t.Errorf("the conditions are %+v", all)
			}
		})
	}
}

// A caller waits for a front that is being started, but not for long.
func TestCallerDoesNotWaitForLong(t *testing.T) {
	limits := brief()
	limits.wait = 10 * time.Millisecond
	f, _ := run(t, limits, hangsAtStart)
	if err := pass(t, f); !errors.Is(err, errStarting) {
		t.Errorf("it gets %v", err)
	}
}

// A front without a user of its own can be signaled by other processes. On a host with packages, which create its user, that is a condition.
func TestFrontSharesItsUser(t *testing.T) {
	for _, c := range []struct {
		name             string
		uid              int
		packaged         bool
		condition, check bool
	}{
		{"its own user", 990, true, false, false}, {"no user, packages", noUser, true, true, false}, {"its own user, no packages", 990, false, false, false}, {"no user, no packages", noUser, false, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &Front{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Packaged: c.packaged}
			f.reportConfinement(7, front.Ready{}, sandbox.State{UID: c.uid, NoNewPrivs: true, Filtered: true})
			all := f.Conditions.List()
			if has := len(all) == 1 &&
				strings.Contains(all[0].Message, "shares its user"); has != c.condition || len(all) > 1 ||
				f.SharesUser() != c.check {
				t.Errorf("conditions %+v, shared %v", all, f.SharesUser())
			}
		})
	}
}
