// Package fronting keeps gpushare-front running, in which callers who are not administrators are read, and passes connections to
// it. It reads nothing of a caller itself. How the process is started is the host's.
package fronting

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/front"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/sandbox"
)

// times are the limits of a front.
type times struct {
	start      time.Duration // until it has given up what it does not need
	pass       time.Duration // one that takes no connection for so long hangs
	wait       time.Duration // a caller waits so long for one that starts
	firstPause time.Duration
	shortPause time.Duration // before the next start: callers wait so long
	mostPause  time.Duration
	steady     time.Duration // one that ran for so long did not fail because of its start
}

// usual has a generous time to take a connection: a host may be busy, and the end of a front takes the requests of others with it.
var usual = times{
	start: 20 * time.Second, pass: 10 * time.Second, wait: 5 * time.Second,
	firstPause: 200 * time.Millisecond, shortPause: time.Second, mostPause: 30 * time.Second, steady: time.Minute,
}

// condition is the kind of all conditions of this package.
const condition = "front"

// Process is a front that was started.
type Process interface {
	PID() int
	Done() <-chan struct{}
	Kill() error
}

// Starter starts a front with its end of the control socket as standard input.
type Starter interface {
	StartFront(ctx context.Context, control *os.File) (Process, error)
}

// Front is the front of a daemon. Set the exported fields before Run.
type Front struct {
	*report.Reporter
	Starter Starter
	Table   front.Table
	// Packaged: a host without the user of the front was not installed as it should be.
	Packaged bool

	limits     times       // without any: usual
	sharesUser atomic.Bool // the last one has the user that every process without one has

	mu      locks.Mutex[locks.Leaf] // guards what follows
	line    *line                   // nil: none serves
	failed  error                   // the last one ended, or did not start, and there is a pause
	changed chan struct{}           // closed when line or failed is set; nil: no caller waits
}

// noUser is the uid of files that belong to no user, which the processes of other programs have too.
const noUser = 65534

// SharesUser reports that the front has no user of its own, on a host where that is no condition.
func (f *Front) SharesUser() bool { return !f.Packaged && f.sharesUser.Load() }

// times returns the limits.
func (f *Front) times() times {
	if f.limits == (times{}) {
		return usual
	}
	return f.limits
}

// Run keeps a front running until ctx ends.
func (f *Front) Run(ctx context.Context) {
	t := f.times()
	pause := time.Duration(0)
	for ctx.Err() == nil {
		began := time.Now()
		served, err := f.runOnce(ctx)
		if ctx.Err() != nil {
			f.set(nil, ctx.Err())
			return
		}
		if time.Since(began) > t.steady {
			pause = 0
		}
		f.Log.Error("gpushare-front does not serve", "error", err, "pause", pause)
		if !served {
			f.Conditions.Set(
				condition, "", "callers who are not administrators are not served: "+err.Error(),
				"it is started again within "+t.mostPause.String()+"; see 'journalctl -u gpushared'",
			)
		}
		if pause > t.shortPause { // Callers wait for the next one otherwise.
			f.set(nil, err)
		}
		if !loop.Pause(ctx, pause) {
			f.set(nil, ctx.Err())
			return
		}
		f.set(nil, nil)
		most := t.mostPause
		if served {
			most = t.shortPause // Who can end it must not be able to keep it away.
		}
		pause = min(max(2*pause, t.firstPause), most)
	}
}

// runOnce starts a front and returns when it does not serve any more, with the reason and whether it has served.
func (f *Front) runOnce(ctx context.Context) (served bool, err error) {
	start, cancel := context.WithTimeout(ctx, f.times().start)
	defer cancel()
	control, p, err := f.start(start)
	if err != nil {
		return false, err
	}
	defer control.Close() // It ends then.
	l := newLine(control, p, f.times().pass)
	f.set(l, nil)
	f.Conditions.Clear(condition, "")
	return true, l.serve(ctx, func() { f.set(nil, ctx.Err()) })
}

// start starts a front, and returns when it is confined and reads connections.
func (f *Front) start(ctx context.Context) (*net.UnixConn, Process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot start gpushare-front: %w", os.NewSyscallError("socketpair", err))
	}
	own, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	conn, err := net.FileConn(own)
	own.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("cannot start gpushare-front: %w", err)
	}
	control := conn.(*net.UnixConn)
	p, err := f.Starter.StartFront(ctx, theirs)
	theirs.Close()
	if err != nil {
		control.Close()
		return nil, nil, err
	}
	if err := f.greet(ctx, control, p); err != nil {
		control.Close()
		_ = p.Kill() // It has ended, or does now.
		return nil, nil, fmt.Errorf("cannot start gpushare-front: %w", err)
	}
	return control, p, nil
}

// greet passes the routes, waits until the front is confined, and reads back what the kernel enforces.
func (f *Front) greet(ctx context.Context, control *net.UnixConn, p Process) error {
	deadline, _ := ctx.Deadline()
	if err := control.SetDeadline(deadline); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = control.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var ready front.Ready
	if err := front.Send(control, f.Table); err != nil {
		return err
	}
	if err := front.Receive(control, &ready); err != nil {
		return err
	}
	state, err := sandbox.StateOf(p.PID())
	if err != nil {
		return err
	}
	f.reportConfinement(p.PID(), ready, state)
	return control.SetDeadline(time.Time{})
}

// reportConfinement reports what the front has although it should not. Before it has read a byte of a caller its word is good, but what
// the kernel says of a process counts.
func (f *Front) reportConfinement(pid int, ready front.Ready, s sandbox.State) {
	missing := ready.Missing
	if s.UID == 0 {
		missing = append(missing, "it runs as root")
	}
	f.sharesUser.Store(s.UID == noUser)
	if s.UID == noUser && f.Packaged {
		missing = append(missing, "it shares its user with other processes: the user gpushare-front does not exist")
	} else if s.UID == noUser {
		f.Log.Warn("gpushare-front shares its user with other processes: the user gpushare-front does not exist", "pid", pid)
	}
	if s.Effective != 0 || s.Permitted != 0 {
		missing = append(missing, fmt.Sprintf("it has capabilities (%x)", s.Effective|s.Permitted))
	}
	if !s.NoNewPrivs {
		missing = append(missing, "it may get new privileges")
	}
	if !s.Filtered {
		missing = append(missing, "the kernel does not filter its calls")
	}
	f.Log.Info("gpushare-front is ready", "pid", pid, "uid", s.UID, "landlock", ready.Landlock, "missing", missing)
	if len(missing) == 0 {
		f.Conditions.Clear(condition, "confinement")
		return
	}
	text := missing[0]
	if len(missing) > 1 {
		text += fmt.Sprintf(", and %d more", len(missing)-1)
	}
	f.Conditions.Set(
		condition, "confinement", "gpushare-front, which reads what callers send, is not confined as it should be: "+text,
		"see 'gpushare doctor' and 'journalctl -u gpushared'; callers are served",
	)
}

// set publishes what serves now, or why nothing does.
func (f *Front) set(l *line, failed error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.line, f.failed = l, failed
	if f.changed != nil && (l != nil || failed != nil) {
		close(f.changed)
		f.changed = nil
	}
}

// errStarting: callers have waited long enough.
var errStarting = errors.New("it is being started")

// serving returns the front that serves. It waits for one that is being started.
func (f *Front) serving(ctx context.Context) (*line, error) {
	timer := time.NewTimer(f.times().wait)
	defer timer.Stop()
	for {
		f.mu.Lock()
		l, failed := f.line, f.failed
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		if l != nil || failed != nil {
			return l, failed
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, errStarting
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Await waits for a front that is being started, and returns why none serves.
func (f *Front) Await(ctx context.Context) error {
	_, err := f.serving(ctx)
	if err != nil {
		return fmt.Errorf("gpushare-front does not run: %w", err)
	}
	return nil
}

// attempts is how many fronts a connection is passed to, until one has taken it.
const attempts = 2

// HandOver passes the connection of a user to the front, and returns the other end: what comes from there comes from that user. After an
// error no front has read of the connection.
func (f *Front) HandOver(ctx context.Context, client *net.UnixConn, uid int) (own *net.UnixConn, err error) {
	for range attempts {
		l, none := f.serving(ctx)
		if none != nil {
			return nil, fmt.Errorf("gpushare-front does not run: %w", none)
		}
		if own, err = l.handOver(ctx, client, uid); !errors.Is(err, errLost) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("gpushare-front does not take connections: %w", err)
	}
	return own, nil
}
