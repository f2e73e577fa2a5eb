package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	busName      = "org.freedesktop.systemd1"
	managerIface = busName + ".Manager"
	managerPath  = dbus.ObjectPath("/org/freedesktop/systemd1")

	dialTime    = 10 * time.Second
	minBackoff  = 50 * time.Millisecond
	maxBackoff  = 5 * time.Second
	signalQueue = 16
)

// Errors of the connection and its jobs.
var (
	// ErrUnavailable: the service manager cannot be reached now.
	ErrUnavailable = errors.New("the service manager cannot be reached")
	// ErrJob: the service manager accepted a job and did not complete it.
	ErrJob = errors.New("the job failed")

	errLost = fmt.Errorf("the connection ended: %w", ErrUnavailable)
)

// link is one connection to the bus. A lost connection is replaced by a new link with a new signal channel: the library
// closes the channel with the connection, and panics when the same one is registered again.
type link struct {
	units   *sd.Conn   // calls and jobs
	raw     *dbus.Conn // calls that the library lacks, and signals
	signals chan *dbus.Signal
}

func (l *link) connected() bool       { return l.units.Connected() && l.raw.Connected() }
func (l *link) done() <-chan struct{} { return l.raw.Context().Done() }
func (l *link) close() {
	l.units.Close()
	l.raw.Close()
}

// supervisor keeps one link up.
type supervisor struct {
	address string
	log     *slog.Logger
	call    listeners

	ctx    context.Context //nolint:containedctx // the supervisor ends the connection, not a caller
	cancel context.CancelFunc
	done   chan struct{} // closed when the supervising goroutine has ended

	reloads atomic.Uint64 // how often what is in force may have changed without this adapter

	// mu guards link and up.
	mu   sync.Mutex
	link *link         // nil while there is none
	up   chan struct{} // closed when link is set
}

// listeners are called in the supervising goroutine when something may have changed without this adapter. All of them are
// called after a lost connection, because signals were lost with it.
type listeners struct {
	reloaded func()            // the service manager has reloaded its configuration
	logins   func()            // a login or logout
	unit     func(name string) // a job of this unit has ended; any unit when empty
}

// supervise dials and keeps the connection up until close.
func supervise(ctx context.Context, address string, log *slog.Logger, call listeners) (*supervisor, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &supervisor{
		address: address, log: log, call: call,
		ctx: own, cancel: cancel, done: make(chan struct{}), up: make(chan struct{}),
	}
	l, err := s.dial(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s.set(l)
	go s.run(l) // ends with close
	return s, nil
}

func (s *supervisor) close() {
	s.cancel()
	<-s.done
}

// get waits for a working connection.
func (s *supervisor) get(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		l, up := s.link, s.up
		s.mu.Unlock()
		if l != nil && l.connected() {
			return l, nil
		}
		if l != nil {
			// It was lost, and the supervisor has not noticed yet.
			s.drop(l)
			continue
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		case <-s.ctx.Done():
			return nil, fmt.Errorf("the adapter was closed: %w", ErrUnavailable)
		}
	}
}

// do runs one idempotent operation, and repeats it once on a new connection when the connection was lost during it.
func (s *supervisor) do(ctx context.Context, op func(context.Context, *link) error) error {
	for again := false; ; again = true {
		l, err := s.get(ctx)
		if err != nil {
			return err
		}
		err = op(ctx, l)
		if err == nil || ctx.Err() != nil || again {
			return err
		}
		// Calls on a lost connection fail with the error of its last read. Only the state of the connection is reliable.
		if !errors.Is(err, errLost) && l.connected() {
			return err
		}
		l.close()
	}
}

func (s *supervisor) run(l *link) {
	defer close(s.done)
	for {
		s.listen(l)
		s.drop(l)
		l.close()
		if s.ctx.Err() != nil {
			return
		}
		s.log.Warn("lost the connection to the service manager, connecting again")
		var ok bool
		if l, ok = s.redial(); !ok {
			return
		}
		s.set(l)
		s.log.Info("connected to the service manager again")
		s.reloads.Add(1)
		s.call.reloaded()
		s.call.logins()
		s.call.unit("")
	}
}

// listen handles signals until the link is lost or the supervisor is closed.
func (s *supervisor) listen(l *link) {
	// The two connections of the library can be lost alone.
	check := time.NewTicker(maxBackoff)
	defer check.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-l.done():
			return
		case <-check.C:
			if !l.connected() {
				return
			}
		case sig, ok := <-l.signals:
			if !ok {
				return
			}
			s.handleSignal(sig)
		}
	}
}

// handleSignal calls the listeners of one signal.
func (s *supervisor) handleSignal(sig *dbus.Signal) {
	switch sig.Name {
	case managerIface + ".Reloading":
		// Reloading(true) comes before a reload, Reloading(false) after it: only then there is something to verify.
		if len(sig.Body) == 1 && sig.Body[0] == false {
			s.reloads.Add(1)
			s.call.reloaded()
		}
	case managerIface + ".JobRemoved":
		if len(sig.Body) == 4 {
			if unit, ok := sig.Body[2].(string); ok && unit != "" {
				s.call.unit(unit)
			}
		}
	case loginIface + ".UserNew", loginIface + ".UserRemoved", loginIface + ".SessionNew", loginIface + ".SessionRemoved":
		s.call.logins()
	case "org.freedesktop.DBus.NameOwnerChanged":
		if len(sig.Body) == 3 && sig.Body[0] == loginName {
			s.call.logins()
		}
	}
}

func (s *supervisor) redial() (*link, bool) {
	for wait := minBackoff; ; wait = min(2*wait, maxBackoff) {
		l, err := s.dial(s.ctx)
		if err == nil {
			return l, true
		}
		s.log.Debug("cannot connect to the service manager", "error", err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
			return nil, false
		}
	}
}

func (s *supervisor) set(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = l
	close(s.up)
}

func (s *supervisor) drop(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l {
		s.link, s.up = nil, make(chan struct{})
	}
}

// dial makes a link: one raw connection, and the two that the library makes.
func (s *supervisor) dial(ctx context.Context) (l *link, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	l = &link{signals: make(chan *dbus.Signal, signalQueue)}
	defer func() {
		if err != nil && l.raw != nil {
			l.raw.Close()
		}
		if err != nil {
			l, err = nil, fmt.Errorf("cannot reach the service manager: %w: %w", ErrUnavailable, err)
		}
	}()
	if l.raw, err = s.dialBus(ctx); err != nil {
		return l, err
	}
	l.raw.Signal(l.signals)
	rules := append(loginMatches(), unitMatches()...)
	for _, rule := range append(rules, []dbus.MatchOption{dbus.WithMatchInterface(managerIface), dbus.WithMatchMember("Reloading")}) {
		if err = l.raw.AddMatchSignalContext(ctx, rule...); err != nil {
			return l, err
		}
	}
	// Only subscribers get signals of reloads and jobs.
	if err = l.raw.Object(busName, managerPath).CallWithContext(ctx, managerIface+".Subscribe", 0).Err; err != nil {
		return l, err
	}
	l.units, err = sd.NewConnection(func() (*dbus.Conn, error) { return s.dialBus(ctx) })
	return l, err
}

// dialBus makes one connection that is kept until the supervisor is closed. ctx bounds only the connecting.
func (s *supervisor) dialBus(ctx context.Context) (*dbus.Conn, error) {
	own, cancel := context.WithCancel(s.ctx)
	conn, err := s.connect(own)
	if err != nil {
		cancel()
		return nil, err
	}
	// A bus that accepts and never answers must not block this: closing the connection ends the handshake.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		stop()
		conn.Close()
		cancel()
		return nil, err
	}
	if err := conn.Hello(); err != nil {
		stop()
		conn.Close()
		cancel()
		return nil, err
	}
	if !stop() {
		cancel()
		return nil, ctx.Err()
	}
	context.AfterFunc(conn.Context(), cancel)
	return conn, nil
}

func (s *supervisor) connect(ctx context.Context) (*dbus.Conn, error) {
	if s.address == "" {
		return dbus.SystemBusPrivate(dbus.WithContext(ctx))
	}
	return dbus.Dial(s.address, dbus.WithContext(ctx))
}

// jobTime is the time limit of one job of the service manager.
const jobTime = 30 * time.Second

// job starts a job and waits for its end. The channel has a buffer for the result: the library sends to it under its lock,
// so that a channel that is not read would block all jobs of the connection.
func (s *supervisor) job(ctx context.Context, what string, start func(context.Context, *sd.Conn, chan<- string) (int, error)) error {
	return s.do(ctx, func(ctx context.Context, l *link) error {
		ctx, cancel := context.WithTimeout(ctx, jobTime)
		defer cancel()
		ended := make(chan string, 1)
		id, err := start(ctx, l.units, ended)
		if err != nil {
			return fmt.Errorf("cannot %s: %w", what, err)
		}
		select {
		case result := <-ended:
			if result == "done" || result == "skipped" {
				return nil
			}
			return fmt.Errorf("cannot %s: the result is %q: %w", what, result, ErrJob)
		case <-l.done():
			return fmt.Errorf("cannot %s: %w", what, errLost)
		case <-ctx.Done():
			s.cancelJob(l, id)
			return fmt.Errorf("cannot %s: the job did not end: %w", what, ctx.Err())
		}
	})
}

// cancelJob cancels a job that takes too long.
func (s *supervisor) cancelJob(l *link, id int) {
	if id == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	if err := l.raw.Object(busName, managerPath).CallWithContext(ctx, managerIface+".CancelJob", 0, uint32(id)).Err; err != nil {
		s.log.Debug("cannot cancel a job", "job", id, "error", err)
	}
}

// is reports whether an error is this one of the service manager.
func is(err error, name string) bool { return errorName(err) == busName+"."+name }

// unknownProperty reports whether the service manager does not know a property that it was given.
func unknownProperty(err error) bool {
	return errorName(err) == "org.freedesktop.DBus.Error.PropertyReadOnly"
}

// errorName is the D-Bus name of an error, empty for other errors.
func errorName(err error) string {
	if e, ok := errors.AsType[dbus.Error](err); ok {
		return e.Name
	}
	if e, ok := errors.AsType[*dbus.Error](err); ok {
		return e.Name
	}
	return ""
}

// parseVersion reads the number from the manager's version: "257", "v252", "252.39-1~deb12u1",
// "systemd 249 (249.11)". 0 when there is none.
func parseVersion(s string) int {
	i := strings.IndexAny(s, "0123456789")
	if i < 0 {
		return 0
	}
	n := 0
	for _, c := range s[i:] {
		if c < '0' || c > '9' || n > 1_000_000 {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}
