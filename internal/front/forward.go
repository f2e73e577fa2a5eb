package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/request"
)

// serve sends on what a caller requests, or reports why it was not understood.
func (f *Front) serve(w http.ResponseWriter, q *http.Request, r *route) {
	l, ok := q.Context().Value(linkKey{}).(*link)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	if e := request.Browser(q); e != nil {
		f.refuse(w, q, l, &Refusal{Status: http.StatusForbidden, Error: *e})
		return
	}
	a, err := f.understand(w, q, r, l.uid)
	given := sync.OnceFunc(func() { f.bodies.Give(l.uid, a.taken) })
	defer given()
	if err != nil {
		given()
		f.refuse(w, q, l, &Refusal{Route: r.Method + " " + r.Pattern, Error: *refusalOf(err)})
		return
	}
	f.request(w, q, l, a, given)
}

// outside reports a request that reaches no route.
func (f *Front) outside(w http.ResponseWriter, q *http.Request) {
	l, ok := q.Context().Value(linkKey{}).(*link)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	status, allow, e := request.Outside(f.mux, q)
	f.refuse(w, q, l, &Refusal{Status: status, Allow: allow, Error: *e})
}

func refusalOf(err error) *api.Error {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.Canceled):
		return &api.Error{Kind: api.KindUnavailable, Message: "the request was canceled"}
	}
	return &api.Error{Kind: api.KindInvalid, Message: "cannot read the request: " + err.Error()}
}

// refuse reports a refusal to the daemon, whose answer it is: the daemon counts it, and says to whom the route is closed anyway.
func (f *Front) refuse(w http.ResponseWriter, q *http.Request, l *link, r *Refusal) {
	if r.Status == 0 {
		r.Status = r.Error.Kind.Status()
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	f.request(w, q, l, &understood{method: http.MethodPost, target: RefusalPath, body: b}, func() {})
}

// head is what precedes the body.
func (a *understood) head() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: gpushare\r\n", a.method, a.target)
	if a.method != http.MethodGet && a.method != http.MethodHead {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(a.body))
	}
	if a.role != "" {
		fmt.Fprintf(&b, "%s: %s\r\n", api.RoleHeader, a.role)
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// inline is the size up to which a request fits into the buffer of the pair, which is empty: sending it does not wait.
const inline = 16 << 10

// request sends a request to the daemon and its answer to the caller. If either end goes away, so does the other. sent is called when the
// body is not needed any more.
func (f *Front) request(w http.ResponseWriter, q *http.Request, l *link, a *understood, sent func()) {
	answered := make(chan struct{})
	defer close(answered)
	stop := context.AfterFunc(q.Context(), func() { // The server has read the end of what the caller sends.
		if l.awaitClosed(answered) {
			_ = l.daemon.Close() // The daemon sees that its caller has closed the connection.
		}
	})
	defer stop()
	message := append(a.head(), a.body...)
	written := make(chan struct{})
	write := func() {
		defer close(written)
		// The daemon may answer without reading all of it, and close: then there is an answer or ended is closed.
		_, _ = l.daemon.Write(message)
		sent()
	}
	if len(message) <= inline {
		write()
	} else {
		go write() // ends with the daemon's end of the pair
	}
	select {
	case <-l.here:
	case <-l.ended:
		<-written
		panic(http.ErrAbortHandler) // No answer: the caller may send it again.
	}
	keep := false
	defer func() {
		if !keep {
			_ = l.daemon.Close()
		}
		<-written
		l.read <- keep
	}()
	res, err := http.ReadResponse(l.answers, &http.Request{Method: a.method})
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if err := answer(w, q, res, a.last); err != nil {
		panic(http.ErrAbortHandler) // The caller must see that it is not whole.
	}
	keep = !res.Close && !a.last
}

// answered are the headers of an answer that the caller gets.
var answered = []string{"Content-Type", "Content-Length", "Etag", "Allow"}

// copied is how much of an answer is read at once.
const copied = 8 << 10

// answer copies an answer. One without a length is a stream, each part of which is sent when it comes.
func answer(w http.ResponseWriter, q *http.Request, res *http.Response, last bool) error {
	defer res.Body.Close()
	for _, key := range answered {
		if v := res.Header[key]; len(v) > 0 {
			w.Header()[key] = v
		}
	}
	if res.Close || last {
		w.Header().Set("Connection", "close")
	}
	startPart(w)
	w.WriteHeader(res.StatusCode)
	control := http.NewResponseController(w)
	stream := res.ContentLength < 0
	if stream {
		if err := control.Flush(); err != nil {
			return fmt.Errorf("cannot answer: %w", err)
		}
	}
	b := make([]byte, copied)
	for {
		n, err := res.Body.Read(b)
		if n > 0 && q.Method != http.MethodHead {
			startPart(w)
			if _, failed := w.Write(b[:n]); failed != nil {
				return fmt.Errorf("cannot answer: %w", failed)
			}
			if stream {
				if failed := control.Flush(); failed != nil {
					return fmt.Errorf("cannot answer: %w", failed)
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the daemon's answer was cut off: %w", err)
		}
	}
}
