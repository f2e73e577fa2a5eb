package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"time"

	"github.com/gpushare/gpushare/internal/request"
)

// Front serves the connections that the daemon passes.
type Front struct {
	Log    *slog.Logger
	routes map[string]*route
	mux    *http.ServeMux
	bodies request.BodyMemory
	long   chan struct{} // has the request that decodes a long body: it takes several times its memory
}

// route is a route with the type of its body.
type route struct {
	Route
	body reflect.Type // nil: it has none
}

// New makes a front for the routes of a daemon.
func New(t Table, log *slog.Logger) (*Front, error) {
	f := &Front{Log: log, routes: map[string]*route{}, mux: http.NewServeMux(), long: make(chan struct{}, 1)}
	for _, r := range t.Routes {
		known := &route{Route: r, body: bodies[r.Body]}
		if r.Body != "" && known.body == nil && !r.Admin {
			return nil, fmt.Errorf("the body %s of %s %s is not known", r.Body, r.Method, r.Pattern)
		}
		f.mux.HandleFunc(r.Method+" "+r.Pattern, func(w http.ResponseWriter, q *http.Request) { f.serve(w, q, known) })
	}
	f.mux.HandleFunc("/", f.outside)
	return f, nil
}

// Serve serves until the daemon has ended.
func (f *Front) Serve(ctx context.Context, control *net.UnixConn) error {
	s := &http.Server{
		Handler: f.Handler(),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, linkKey{}, c)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if l, ok := c.(*link); ok {
				l.state(state)
			}
		},
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: request.ReadTimeout, IdleTimeout: request.IdleTimeout, MaxHeaderBytes: request.MaxHeader,
		ErrorLog: slog.NewLogLogger(f.Log.Handler(), slog.LevelDebug),
	}
	defer s.Close()
	err := s.Serve(&taken{control, f.Log})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Handler is what answers a request on a link.
func (f *Front) Handler() http.Handler { return request.BoundsHead(request.ClosesUnread(f.mux)) }

type linkKey struct{}

// taken is the listener of connections that the daemon passes.
type taken struct {
	control *net.UnixConn
	log     *slog.Logger
}

// Accept returns the next connection. The daemon knows then that it was taken, before a byte of it is read.
func (t *taken) Accept() (net.Conn, error) {
	for {
		client, daemon, uid, err := take(t.control)
		if err == nil || errors.Is(err, errIncomplete) {
			if _, failed := t.control.Write(acknowledged); failed != nil {
				t.log.Debug("cannot acknowledge a connection", "error", failed)
				if err == nil {
					client.Close()
					daemon.Close()
				}
				return nil, io.EOF // The daemon has ended.
			}
		}
		if errors.Is(err, errIncomplete) {
			t.log.Warn("cannot serve a connection", "error", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		return newLink(client, daemon, uid), nil
	}
}

// Close ends Accept.
func (t *taken) Close() error { return t.control.Close() }

// Addr is that of the control socket.
func (t *taken) Addr() net.Addr { return t.control.LocalAddr() }

// startPart sets the deadline for the next part of an answer: a caller that does not read is disconnected.
func startPart(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(request.WriteTimeout)) // A test's recorder has none.
}
