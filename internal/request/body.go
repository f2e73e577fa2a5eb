package request

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/gpushare/gpushare/api"
)

// Limits of a connection.
const (
	IdleTimeout  = 2 * time.Minute
	ReadTimeout  = 10 * time.Second // of a request's head, and then of its body
	WriteTimeout = 30 * time.Second // of one answer, or one line of a long one
)

// incoming is the body of a request. The connection is closed after the answer unless the end of the body was read: what
// is left may never arrive.
type incoming struct {
	io.ReadCloser
	answer http.Header
	ended  bool
}

// Read reads, and keeps the connection at the end.
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended = true
		b.answer.Del("Connection")
	}
	return n, err
}

// ClosesUnread answers a request whose body is not read to its end by closing the connection. Package http would wait for
// the rest, without a deadline.
func ClosesUnread(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.ContentLength == 0 || q.Body == nil {
			h.ServeHTTP(w, q)
			return
		}
		b := &incoming{ReadCloser: q.Body, answer: w.Header()}
		w.Header().Set("Connection", "close")
		defer func() {
			if !b.ended {
				_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // A test's recorder has none.
			}
		}()
		own := q.WithContext(q.Context()) // The server looks at the type of its own body.
		own.Body = b
		h.ServeHTTP(w, own)
	})
}

// Body reads the whole body of a request, within a deadline. take is called before more memory is used.
func Body(w http.ResponseWriter, q *http.Request, take func(n int) error) ([]byte, error) {
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(ReadTimeout)) // A test's recorder has none.
	b, err := ReadBody(http.MaxBytesReader(w, q.Body, MaxBody), take)
	if err == nil {
		_ = deadline.SetReadDeadline(time.Time{})
		return b, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("the request did not arrive within %v", ReadTimeout)}
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, tooLarge(q)
	}
	if _, refused := errors.AsType[*api.Error](err); refused {
		return nil, err
	}
	return nil, &api.Error{
		Kind:    api.KindInvalid,
		Message: "cannot read the request: " + err.Error(),
	} // Its caller went away, or sent no chunks.
}

// tooLarge says what a request was that has too many bytes.
func tooLarge(q *http.Request) *api.Error {
	e := &api.Error{Kind: api.KindInvalid, Message: "the request is larger than 1 MiB", Hint: "this is probably a mistake"}
	switch q.URL.Path {
	case "/v1/spec":
		e.Message, e.Hint = "the document is larger than 1 MiB", "a spec of this size is probably a mistake"
	case "/v1/leases":
		e.Message = "the request of a lease is larger than 1 MiB: its command and, of a detached one, its environment have at most that together"
		e.Hint = "pass long lists in a file, or remove variables"
	}
	return e
}
