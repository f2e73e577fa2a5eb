package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// stand is a stand-in of the daemons of many nodes: it passes the requests of one host to the virtual node, and then gives the same answers
// to all hosts. A daemon takes one change at a time, and a host with a thousand daemons would measure itself.
type stand struct {
	mu      sync.Mutex // guards the others
	replays bool
	answers map[string]answer
	missing int
	server  *http.Server
	served  chan struct{}
}

type answer struct {
	code int
	head http.Header
	body []byte
}

// newStand serves on a socket what the daemon at another answers.
func newStand(socket, daemon string) (*stand, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s := &stand{answers: map[string]answer{}, served: make(chan struct{})}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "node"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", daemon)
	}}
	proxy.ModifyResponse = func(r *http.Response) error {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answers[r.Request.Method+" "+r.Request.URL.RequestURI()] = answer{r.StatusCode, r.Header.Clone(), b}
		return nil
	}
	s.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		replays, a := s.replays, s.answers[r.Method+" "+r.URL.RequestURI()]
		if replays && a.code == 0 {
			s.missing++
			a.code = http.StatusNotFound
		}
		s.mu.Unlock()
		if !replays {
			proxy.ServeHTTP(w, r)
			return
		}
		for name, values := range a.head {
			w.Header()[name] = values
		}
		w.WriteHeader(a.code)
		_, _ = w.Write(a.body) // The reader may have ended.
	})}
	go func() {
		defer close(s.served)
		_ = s.server.Serve(l) // Close ends it.
	}()
	return s, nil
}

// replay begins to give the answers that were recorded.
func (s *stand) replay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replays = true
}

// unknown is how many requests had no answer.
func (s *stand) unknown() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing
}

func (s *stand) close() {
	s.server.Close()
	<-s.served
}
