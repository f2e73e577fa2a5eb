package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/front"
	"github.com/gpushare/gpushare/internal/request"
)

// Front has another process read a caller: it passes on what it understood, on a connection of its own for each one that it got. Who
// the caller is was read before, from the kernel: the process cannot say it.
type Front interface {
	// Await waits for a front that is being started, within a deadline of its own, and returns why none serves.
	Await(ctx context.Context) error
	HandOver(ctx context.Context, client *net.UnixConn, uid int) (*net.UnixConn, error)
}

// wayKey is the key of the way that a request came.
type wayKey struct{}

type way int

const (
	direct way = iota + 1
	throughFront
)

// cameTheRightWay reports whether an administrator came directly and everybody else through the front, if there is one. A group
// may become known after a connection was accepted.
func (s *Server) cameTheRightWay(c *Call) bool {
	switch c.Ctx().Value(wayKey{}) {
	case direct:
		return s.Front == nil || c.Caller.Admin
	case throughFront:
		return !c.Caller.Admin
	}
	return true // a test
}

// Serving serves a socket: administrators itself, everybody else through the front.
type Serving struct {
	s               *Server
	ctx             context.Context
	direct, fronted *http.Server
	passed          chan net.Conn // to fronted
	ended           context.Context
	end             context.CancelFunc
}

// NewServing makes what serves. Its requests end with ctx.
func (s *Server) NewServing(ctx context.Context) *Serving {
	v := &Serving{s: s, ctx: ctx, direct: s.NewServer(ctx), fronted: s.NewServer(ctx), passed: make(chan net.Conn)}
	v.ended, v.end = context.WithCancel(context.Background())
	// The front has the deadlines for what callers send.
	v.fronted.ReadHeaderTimeout, v.fronted.IdleTimeout = 0, 0
	v.fronted.Handler = s.fronted()
	return v
}

// Serve serves until Shutdown.
func (v *Serving) Serve(l *cappedListener) error {
	if v.s.Front == nil {
		return v.direct.Serve(l)
	}
	failed := make(chan error, 1)
	go func() { failed <- v.fronted.Serve(&passedConns{v}) }() // ends with Shutdown or Close
	err := v.direct.Serve(&divided{l, v})
	v.end()
	return errors.Join(err, closedIsNil(<-failed))
}

// ServeAlso serves another listener until Shutdown, or until that is closed.
func (v *Serving) ServeAlso(l *cappedListener) error {
	if v.s.Front == nil {
		return v.direct.Serve(l)
	}
	return v.direct.Serve(&divided{l, v})
}

// closedIsNil leaves out that a server was closed: the other one says it.
func closedIsNil(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Shutdown waits for requests that run, and Close does not.
func (v *Serving) Shutdown(ctx context.Context) error {
	v.end()
	var wg sync.WaitGroup
	var a, b error
	wg.Go(func() { a = v.direct.Shutdown(ctx) })
	wg.Go(func() { b = v.fronted.Shutdown(ctx) })
	wg.Wait()
	return errors.Join(a, b)
}

// Close ends all connections.
func (v *Serving) Close() error {
	v.end()
	return errors.Join(v.direct.Close(), v.fronted.Close())
}

// divided is the listener of administrators. It passes the others on.
type divided struct {
	*cappedListener
	v *Serving
}

// Accept returns the next connection of an administrator.
func (d *divided) Accept() (net.Conn, error) {
	for {
		conn, err := d.cappedListener.Accept()
		if err != nil {
			return nil, err
		}
		c := conn.(*cappedConn)
		if c.hasRole && d.v.s.Identities.Caller(c.peer).Admin {
			return c, nil
		}
		d.v.s.Tasks.Go(func() { d.v.pass(c) }) // ends within passTimeout and the deadlines of the front
	}
}

// pass passes a connection to the front, and serves what it sends on.
func (v *Serving) pass(c *cappedConn) {
	own, err := v.handOver(c)
	if err != nil {
		if v.ended.Err() != nil || errors.Is(err, errHungUp) {
			_ = c.Close() // The daemon ends, or no one waits for an answer.
			return
		}
		v.s.Log.Debug("cannot serve a connection", "uid", c.peer.UID, "error", err)
		v.unavailable(c, err)
		return
	}
	c.end.Store(own)
	_ = c.Conn.Close() // The front has its own descriptor.
	f := &frontConn{UnixConn: own, from: c}
	select {
	case v.passed <- f:
	case <-v.ended.Done():
		_ = f.Close() // The daemon ends.
	}
}

// passTimeout bounds how long a connection waits for those of other users.
const passTimeout = 30 * time.Second

var errOthersFirst = fmt.Errorf("connections of other users took %v", passTimeout)

// handOver passes a connection when those of users who had fewer have been passed.
func (v *Serving) handOver(c *cappedConn) (*net.UnixConn, error) {
	slot, err := v.awaitPlace(c)
	if err != nil {
		return nil, err
	}
	defer slot.end()
	c.findProcess() // by the descriptor, which is the front's afterwards
	return v.s.Front.HandOver(v.ended, c.UnixConn, c.peer.UID)
}

// awaitPlace waits for the front, and for the connections of users who had fewer, as long as the caller does.
func (v *Serving) awaitPlace(c *cappedConn) (*slot, error) {
	limited, cancel := context.WithTimeout(v.ended, passTimeout)
	defer cancel()
	ctx, stop := whileConnected(limited, c.UnixConn)
	defer stop()
	if err := v.s.Front.Await(ctx); err != nil { // without a slot, which others need
		return nil, orHungUp(ctx, err)
	}
	slot, err := v.s.slots.begin(ctx, passing, &Caller{Peer: c.peer})
	if err != nil {
		return nil, orHungUp(ctx, errOthersFirst)
	}
	return slot, nil
}

func orHungUp(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errHungUp) {
		return errHungUp
	}
	return err
}

// unavailable answers the first request of a connection without reading it.
func (v *Serving) unavailable(c *cappedConn, why error) {
	defer c.Close()
	stop := context.AfterFunc(v.ended, c.shutDown)
	defer stop()
	e := &api.Error{
		Kind:    api.KindUnavailable,
		Message: "cannot read the request: gpushare-front does not run",
		Hint:    "try again; an administrator sees the reason with 'gpushare condition list'",
	}
	if errors.Is(why, errOthersFirst) {
		e.Message, e.Hint = "cannot read the request: "+why.Error(), "try again later"
	}
	b, err := json.Marshal(map[string]*api.Error{"error": e})
	if err != nil {
		return
	}
	if err := c.SetDeadline(time.Now().Add(request.ReadTimeout)); err != nil {
		return
	}
	if !awaitBytes(c.UnixConn) {
		return
	}
	_, _ = fmt.Fprintf(
		c.UnixConn,
		"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		len(b), b,
	)
	_ = c.CloseWrite()
	// A caller whose request is not read gets an error instead of the answer. What arrives is dropped, within the deadline.
	drop := make([]byte, 4<<10)
	for dropped := 0; dropped < 2*request.MaxBody; {
		n, err := c.Conn.Read(drop)
		if err != nil {
			return
		}
		dropped += n
	}
}

// awaitBytes waits until a request begins to arrive: a client takes an answer before that for one that it did not expect.
func awaitBytes(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	here := false
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		here = n > 0
		return !errors.Is(err, unix.EAGAIN)
	})
	return err == nil && here
}

// frontConn is the pair to the front of one connection, which is counted until it ends.
type frontConn struct {
	*net.UnixConn
	from *cappedConn
}

// Close closes the pair, and with it the front the connection.
func (f *frontConn) Close() error {
	f.from.l.forget(f.from)
	return f.UnixConn.Close()
}

// passedConns is the listener of the pairs.
type passedConns struct{ v *Serving }

// Accept returns the next pair.
func (p *passedConns) Accept() (net.Conn, error) {
	select {
	case c := <-p.v.passed:
		return c, nil
	case <-p.v.ended.Done():
		return nil, net.ErrClosed
	}
}

// Close does nothing: Accept ends with the server.
func (p *passedConns) Close() error { return nil }

// Addr is that of no socket.
func (p *passedConns) Addr() net.Addr { return &net.UnixAddr{Name: "front", Net: "unix"} }

// FrontTable is what the front has to know of the routes.
func (s *Server) FrontTable() (front.Table, error) {
	var t front.Table
	for i := range s.Routes {
		r := &s.Routes[i]
		f := front.Route{Method: r.Method, Pattern: r.Pattern, What: r.What, Admin: r.Access == Admin, Query: r.Query}
		if r.Body != nil && !f.Admin {
			name, ok := front.BodyName(r.Body)
			if !ok {
				return t, fmt.Errorf("internal error: gpushare-front does not decode the body of %s %s", r.Method, r.Pattern)
			}
			f.Body = name
		}
		t.Routes = append(t.Routes, f)
	}
	return t, nil
}

// fronted handles what the front sends: requests, and refusals of those that it did not understand.
func (s *Server) fronted() http.Handler {
	refusals := Route{
		Method:  http.MethodPost,
		Pattern: front.RefusalPath,
		Access:  Anyone,
		What:    "request",
		Handle:  s.takeRefusal,
		More:    More{Body: front.Refusal{}},
		Bound:   Refusals,
	}
	requests := s.Handler()
	mux := http.NewServeMux()
	mux.HandleFunc(refusals.Method+" "+refusals.Pattern, func(w http.ResponseWriter, q *http.Request) { s.Serve(w, q, &refusals) })
	mux.Handle("/", requests)
	return request.ClosesUnread(mux)
}

// takeRefusal answers with a refusal of the front, as if the request had been refused here.
func (s *Server) takeRefusal(c *Call) error {
	r, err := Decode[front.Refusal](c)
	if err != nil {
		return err
	}
	for i := range s.Routes {
		if known := &s.Routes[i]; known.Method+" "+known.Pattern == r.Route {
			c.route = known
			if !known.Access.allows(c.Caller) {
				return known.Access.denied(c.Caller, known.What)
			}
		}
	}
	r.Allow = slices.DeleteFunc(
		r.Allow, func(m string) bool { return !slices.Contains(request.Methods(), m) },
	) // It is a header of the answer.
	if len(r.Allow) > 0 {
		c.W.Header().Set("Allow", strings.Join(r.Allow, ", "))
	}
	if r.Status < 400 || r.Status > 599 { // It is no refusal.
		r.Status = http.StatusInternalServerError
	}
	c.Note.Refused = &r.Error
	writeStatus(c.W, r.Status, &r.Error)
	return nil
}
