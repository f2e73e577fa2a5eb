package front

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"golang.org/x/sys/unix"
)

// The time of a request on a new connection, read by the daemon itself, and through a front, which acknowledges the connection first. The
// front runs in this process: changes between processes add to it.
func BenchmarkRequest(b *testing.B) {
	f, err := New(table, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	control, theirs := sockets(b, unix.SOCK_SEQPACKET)
	d := &daemon{conns: make(chan net.Conn)}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answered") })}
	var ended [2]chan struct{}
	for i, serve := range []func(){func() { _ = f.Serve(b.Context(), theirs) }, func() { _ = s.Serve(d) }} {
		ended[i] = make(chan struct{})
		go func() {
			defer close(ended[i])
			serve()
		}()
	}
	b.Cleanup(func() {
		control.Close()
		close(d.conns)
		_ = s.Close()
		<-ended[0]
		<-ended[1]
	})
	for _, way := range []struct {
		name string
		pass func(accepted *net.UnixConn) (net.Conn, error)
	}{
		{"direct", func(accepted *net.UnixConn) (net.Conn, error) { return accepted, nil }},
		{"front", func(accepted *net.UnixConn) (net.Conn, error) {
			defer accepted.Close()
			own, err := HandOver(control, accepted, 1001)
			if err != nil {
				return nil, err
			}
			return own, AwaitTaken(control)
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				caller, accepted := sockets(b, unix.SOCK_STREAM)
				served, err := way.pass(accepted)
				if err != nil {
					b.Fatal(err)
				}
				d.conns <- served
				if _, err := io.WriteString(caller, "GET /v1/status"+head+"Connection: close\r\n\r\n"); err != nil {
					b.Fatal(err)
				}
				res, err := http.ReadResponse(bufio.NewReader(caller), nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, res.Body); err != nil {
					b.Fatal(err)
				}
				caller.Close()
			}
		})
	}
}
