package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A socket that no process reaches by its name is opened again at the first check: the service manager passed one whose name was
// removed, and the name is missing, or that of a socket on which a process listened that has ended.
func TestSocketWhoseNameIsOfAnother(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, path string){
		"missing": func(t *testing.T, path string) {},
		"of a process that has ended": func(t *testing.T, path string) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			prepare(t, path)
			var served net.Listener
			s := Socket{Path: path, Serve: func(l net.Listener) { served = l }}
			if lost, err := s.Revalidate(); err != nil || len(lost) != 1 || served == nil {
				t.Fatalf("lost %q, %v, serves %v", lost, err, served)
			}
			defer served.Close()
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if lost, err := s.Revalidate(); err != nil || len(lost) != 0 {
				t.Errorf("the second check: lost %q, %v", lost, err)
			}
		})
	}
}

// A socket on which this process listens is not opened again, until its name is removed.
func TestSocketThatIsReached(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var served net.Listener
	s := Socket{Path: path, Serve: func(l net.Listener) { served = l }}
	if lost, err := s.Revalidate(); err != nil || len(lost) != 0 || served != nil {
		t.Errorf("lost %q, %v, serves %v", lost, err, served)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if lost, err := s.Revalidate(); err != nil || len(lost) != 1 || served == nil {
		t.Fatalf("lost %q, %v, serves %v", lost, err, served)
	}
	served.Close()
}

// A socket that is open does not answer yet.
func TestAnswers(t *testing.T) {
	t.Parallel()
	l := listenUnix(t)
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := Answers(soon, l.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no one accepts: %v", err)
	}
	s := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	if err := Answers(t.Context(), l.Addr().String()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-served
	if err := Answers(t.Context(), l.Addr().String()); err == nil {
		t.Error("no one listens, and there is an answer")
	}
}
