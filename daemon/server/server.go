package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/durable"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/request"
)

// MaxBody is the limit of a body in bytes.
const MaxBody = request.MaxBody

// Call is one request with its caller.
type Call struct {
	W      http.ResponseWriter
	R      *http.Request
	Caller *Caller

	// Note is what the handler adds to the entry of the audit.
	Note Note

	route      *Route      // nil in a test that calls a handler
	identities *Identities // nil in a test that calls a handler
	query      url.Values  // checked

	slot   *slot               // nil while it has none
	slots  *slots              // nil in a test that calls a handler
	bodies *request.BodyMemory // nil in a test that calls a handler
	body   int                 // bytes that are counted in bodies
}

// Ctx ends with the request.
func (c *Call) Ctx() context.Context { return c.R.Context() }

// Reply writes v as JSON.
func (c *Call) Reply(status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("internal error: cannot encode the answer: %w", err)
	}
	return c.ReplyBytes(status, append(b, '\n'))
}

// jsonType is the value of the header. It is never changed.
var jsonType = []string{"application/json"}

// ReplyBytes writes JSON that was encoded before.
func (c *Call) ReplyBytes(status int, b []byte) error { return c.reply(status, jsonType, b) }

// ReplyText writes text of another type.
func (c *Call) ReplyText(status int, contentType string, b []byte) error {
	return c.reply(status, []string{contentType}, b)
}

func (c *Call) reply(status int, contentType []string, b []byte) error {
	h := c.W.Header()
	h["Content-Type"] = contentType
	c.slot.end()                                         // The rest depends on how fast the caller reads.
	h["Content-Length"] = []string{strconv.Itoa(len(b))} // Else a long answer is sent in chunks, each with a system call.
	StartPart(c.W)
	c.W.WriteHeader(status)
	_, _ = c.W.Write(b) // An error means that the caller has closed the connection.
	return nil
}

// StartPart sets the deadline for the next part of the answer. A caller that does not read is disconnected: the answer may
// be a new lease, which keeps its GPU until then.
func StartPart(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(request.WriteTimeout)) // A test's recorder has none.
}

// Handler routes requests: identity, access, the handler of the route, and the encoding of its error.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.Routes {
		mux.HandleFunc(r.Method+" "+r.Pattern, func(w http.ResponseWriter, q *http.Request) { s.Serve(w, q, &r) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		status, allow, e := request.Outside(mux, q)
		if len(allow) > 0 {
			w.Header().Set("Allow", strings.Join(allow, ", "))
		}
		s.refuseOutside(w, q, status, e)
	})
	return request.BoundsHead(request.ClosesUnread(mux))
}

// Serve answers one request of a route.
func (s *Server) Serve(w http.ResponseWriter, q *http.Request, r *Route) {
	if e := request.Browser(q); e != nil {
		s.refuseOutside(w, q, http.StatusForbidden, e)
		return
	}
	p, ok := peerFrom(q.Context())
	if !ok {
		writeError(w, &api.Error{Kind: api.KindDenied, Message: "cannot read the credentials of the caller"})
		return
	}
	c := &Call{W: w, R: q, Caller: s.Identities.Caller(p), identities: s.Identities}
	if !s.cameTheRightWay(c) {
		w.Header().Set("Connection", "close")
		writeError(w, &api.Error{
			Kind:    api.KindUnavailable,
			Message: "your role has changed since the connection was opened",
			Hint:    "send the request again",
		})
		return
	}
	if s.Identities.Names.HasPending() {
		s.Identities.WakeNames()
	}
	if e := s.reduce(c); e != nil {
		s.refuseOutside(w, q, http.StatusBadRequest, e)
		return
	}
	refused := s.answer(c, r)
	if c.route != nil {
		r = c.route // of a request that the front refused
	}
	s.audit(c, r, refused)
}

// answer checks the request and calls the handler; it returns the refusal that it wrote. Of a caller who may not use the route
// nothing is read.
func (s *Server) answer(c *Call, r *Route) *api.Error {
	refuse := func(err error) *api.Error {
		e := s.refusal(r, err)
		writeError(c.W, e)
		return e
	}
	if !r.Access.allows(c.Caller) {
		return refuse(r.Access.denied(c.Caller, r.What))
	}
	if err := c.parse(r); err != nil {
		return refuse(err)
	}
	if r.Audit.Name != "" && (r.Access == Admin || r.Access == Member) {
		now, err := s.Identities.confirmed(c.Ctx(), r.Access, c.Caller.Peer, r.What)
		if c.Caller = now; err != nil {
			return refuse(err)
		}
	}
	release, err := s.limiter.acquire(c.Ctx(), &r.Bound, c.Caller.UID)
	if err != nil {
		return refuse(err)
	}
	defer release()
	c.slots, c.bodies = &s.slots, &s.bodies
	defer c.Keep(0)
	if err := c.begin(r.Bound.slot); err != nil {
		return refuse(err)
	}
	if c.Caller = c.Now(); !r.Access.allows(c.Caller) { // It may have waited.
		return refuse(r.Access.denied(c.Caller, r.What))
	}
	if r.Bound.Kind == Changes.Kind { // A change waits for the one before it.
		ctx, stop := c.WhileAllowed()
		defer stop()
		c.R = c.R.WithContext(ctx)
	}
	g := &going{}
	if r.Audit.Name != "" {
		var end func()
		g, end = s.goes(c)
		defer end()
	}
	if !r.Bound.Reads() {
		c.slot.end()
	}
	defer func() { c.slot.end() }()
	if err := r.Handle(c); err != nil {
		c.slot.end()
		if lost := Lost(c.Ctx()); lost != nil && !g.begun {
			err = lost
		}
		return refuse(err)
	}
	return nil
}

// begin waits for a slot of the caller.
func (c *Call) begin(kind work) (err error) {
	if c.slots != nil {
		c.slot, err = c.slots.begin(c.Ctx(), kind, c.Caller)
	}
	return err
}

// parse checks the query, and that there is no body where none is read.
func (c *Call) parse(r *Route) (err error) {
	if c.route = r; r.Body == nil && c.R.ContentLength != 0 {
		return request.NoBody(r.What)
	}
	c.query, err = r.Query.Parse(c.R.URL.RawQuery)
	return err
}

// refusal returns an error as an API error. An error of another type is internal and is logged.
func (s *Server) refusal(r *Route, err error) *api.Error {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.Canceled):
		return &api.Error{Kind: api.KindUnavailable, Message: "the request was canceled"}
	}
	s.Log.Error("a request failed", "method", r.Method, "route", r.Pattern, "error", err)
	return &api.Error{Kind: api.KindInternal, Message: err.Error(), Hint: "see the journal of gpushared"}
}

func writeError(w http.ResponseWriter, e *api.Error) { writeStatus(w, e.Kind.Status(), e) }

func writeStatus(w http.ResponseWriter, status int, e *api.Error) {
	b, err := json.Marshal(map[string]*api.Error{"error": e})
	if err != nil {
		b = []byte(`{"error":{"kind":"internal","message":"the error does not encode"}}`)
	}
	if status < 400 {
		status = http.StatusInternalServerError
	}
	StartPart(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// NewServer sets all timeouts except the one for writes: some answers wait for long, and each part of them has its own
// deadline.
func (s *Server) NewServer(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           s.Handler(),
		ConnContext:       withPeer,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: request.ReadTimeout,
		IdleTimeout:       request.IdleTimeout,
		MaxHeaderBytes:    request.MaxHeader,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
}

// Listen opens the socket, which every local user may reach: rights come from credentials.
func Listen(path string) (net.Listener, error) {
	if err := durable.MakeDirectories(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("cannot create the directory of the socket: %w", err)
	}
	// This is the only daemon on the state directory (it has the lock), so an existing socket belongs to one that has exited.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot remove the old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(shortenBacklog(l.(*net.UnixListener)), os.Chmod(path, 0o666)); err != nil {
		l.Close()
		return nil, fmt.Errorf("cannot open the socket to all users: %w", err)
	}
	return l, nil
}

// backlog is how many connections wait in the kernel to be accepted. A flood fills it with connections that are closed at once, and
// each one costs three system calls before the next is accepted. Without a place a caller waits in connect(2), one after the other.
const backlog = 128

// shortenBacklog replaces the backlog of package net, the longest that the kernel allows: the last listen(2) counts.
func shortenBacklog(l *net.UnixListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	return errors.Join(raw.Control(func(fd uintptr) { failed = os.NewSyscallError("listen", unix.Listen(int(fd), backlog)) }), failed)
}

// Route is one entry of the table. It alone says who may use the route.
type Route struct {
	Method  string
	Pattern string
	What    string // "read the spec": for the refusal
	Access  Access
	Bound   Bound // how many one user may have at once
	Handle  func(*Call) error
	More
}

// More is what only some routes have.
type More struct {
	// Audit is the action; without a name: it changes nothing, and only its refusals are counted.
	Audit    Action
	AuditGPU bool // the id in the path is of a GPU, and not of a lease
	Query    Query
	Body     any // nil: none; Document; or a value of the type that Decode returns
}

// Server answers requests on the socket.
type Server struct {
	*report.Reporter
	Front      Front // reads callers who are not administrators; nil: the server does
	Tasks      *loop.Group
	Identities *Identities
	limiter    limiter
	slots      slots
	bodies     request.BodyMemory
	Routes     []Route
}
