package server_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/internal/loop"
)

// pipes is a listener in memory, which has virtual time.
type pipes struct{ conns chan net.Conn }

func (p *pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// serve serves two routes that read a body and one that reads none, and returns a function that connects as a user.
func serve(t *testing.T, caller string) func() net.Conn {
	r := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	ids := server.NewIdentities(r, &loop.Group{}, servertest.UidSelf, "off")
	ids.Table.Store(servertest.Identities())
	read := func(c *server.Call) error {
		q, err := server.Decode[api.LeaseRequest](c)
		if err != nil {
			return err
		}
		return c.Reply(http.StatusOK, len(q.Command))
	}
	s := &server.Server{Reporter: r, Tasks: &loop.Group{}, Identities: ids, Routes: []server.Route{
		{
			Method:  http.MethodPost,
			Pattern: "/v1/leases",
			Access:  server.Member,
			Handle:  read,
			More:    server.More{Body: api.LeaseRequest{}},
			Bound:   server.Starts,
		},
		{
			Method:  http.MethodPut,
			Pattern: "/v1/spec",
			Access:  server.Admin,
			Handle:  read,
			More:    server.More{Body: api.LeaseRequest{}},
			Bound:   server.Changes,
		},
		{
			Method:  http.MethodGet,
			Pattern: "/v1/status",
			Access:  server.Reader,
			Handle:  func(c *server.Call) error { return c.Reply(http.StatusOK, "status") },
			Bound:   server.Reads,
		},
	}}
	h := s.NewServer(context.Background())
	h.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, server.PeerKey{}, servertest.Peers()[caller])
	}
	l := &pipes{make(chan net.Conn)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Serve(l) // It ends with an error.
	}()
	t.Cleanup(func() {
		close(l.conns)
		_ = h.Close()
		<-done
		time.Sleep(closing) // virtual: the goroutines of closed connections have ended then
	})
	return func() net.Conn {
		a, b := net.Pipe()
		l.conns <- b
		return a
	}
}

// closing is how long package http keeps a connection that it closes, so that the answer is read.
const closing = 500 * time.Millisecond

const head = " HTTP/1.1\r\nHost: gpushare\r\n"

// A request that does not arrive is answered or dropped within its deadline, and its connection is closed: the rest of a
// body is not awaited.
func TestSlowRequestsLoseTheirConnection(t *testing.T) {
	for _, c := range []struct {
		name   string
		begin  string // sent at once
		more   string // sent each second; empty: nothing
		within time.Duration
		status string // empty: no answer
	}{
		{"a body with a length, of which nothing arrives", "POST /v1/leases" + head + "Content-Length: 1000\r\n\r\n", "", 10 * time.Second, "503"},
		{"a body with a length, byte by byte", "POST /v1/leases" + head + "Content-Length: 1000000\r\n\r\n{", " ", 10 * time.Second, "503"},
		{"a body with a length, of which the last byte is missing", "POST /v1/leases" + head + "Content-Length: 20\r\n\r\n{\"command\":[\"true\"]", "", 10 * time.Second, "503"},
		{"chunks, of which none arrives", "POST /v1/leases" + head + "Transfer-Encoding: chunked\r\n\r\n", "", 10 * time.Second, "503"},
		{"chunks of one byte", "POST /v1/leases" + head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n", 10 * time.Second, "503"},
		{"chunks without an end", "POST /v1/leases" + head + "Transfer-Encoding: chunked\r\n\r\n14\r\n{\"command\":[\"true\"]}\r\n", "", 10 * time.Second, "503"},
		{"a head, byte by byte", "GET /v1/status" + head + "X-Slow: ", "x", 10 * time.Second, ""},
		{"half a head", "GET /v1/st", "", 10 * time.Second, "400"},
		{"a body for a route that reads none", "GET /v1/status" + head + "Content-Length: 1000\r\n\r\n", "", 0, "400"},
		{"a body for another method", "PATCH /v1/status" + head + "Content-Length: 1000\r\n\r\n", "x", 0, "405"},
		{"a body for no route", "POST /v1/nothing" + head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", 0, "404"},
		{"a body of a caller who may not", "PUT /v1/spec" + head + "Content-Length: 1000\r\n\r\n", "x", 0, "403"},
		{"a body that is too large", "POST /v1/leases" + head + "Content-Length: 100000000\r\n\r\n" + strings.Repeat(" ", server.MaxBody+1), " ", 0, "400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := serve(t, "member")()
				began := time.Now()
				_ = conn.SetDeadline(began.Add(time.Hour))
				sent := make(chan struct{})
				defer func() {
					conn.Close()
					<-sent
				}()
				go func() {
					defer close(sent)
					_, err := io.WriteString(conn, c.begin)
					for every := time.NewTicker(time.Second); err == nil && c.more != ""; <-every.C {
						_, err = io.WriteString(conn, c.more)
					}
				}()
				answer, err := io.ReadAll(conn)
				if err != nil {
					t.Errorf("the connection is open after %v: %v", time.Since(began), err)
				}
				if elapsed := time.Since(began); elapsed > c.within+closing {
					t.Errorf("it is closed after %v, want %v", elapsed, c.within)
				}
				first, _, _ := strings.Cut(string(answer), "\r\n")
				if (c.status == "") != (len(answer) == 0) || !strings.Contains(first, c.status) {
					t.Errorf("the answer is %.200q", answer)
				}
			})
		})
	}
}

// A connection is kept after a body that was read to its end, with a length and in chunks.
func TestWholeRequestsKeepTheirConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serve(t, "member")()
		defer conn.Close()
		in := bufio.NewReader(conn)
		for _, request := range []string{
			"POST /v1/leases" + head + "Content-Length: 20\r\n\r\n{\"command\":[\"true\"]}",
			"POST /v1/leases" + head + "Transfer-Encoding: chunked\r\n\r\n14\r\n{\"command\":[\"true\"]}\r\n0\r\n\r\n",
			"POST /v1/leases" + head + "Content-Length: 2\r\n\r\n[]",
			"GET /v1/status" + head + "\r\n",
		} {
			go func() { _, _ = io.WriteString(conn, request) }()
			w, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, w.Body); err != nil || w.Close {
				t.Errorf("after %.40q the connection is closed: %v", request, err)
			}
			time.Sleep(11 * time.Second) // virtual. The deadline of the body has no effect on the next request.
		}
	})
}

// What one user sends at a time has a limit, and so has what all send; a short request of another user always arrives.
func TestBodiesHaveLimitedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := "POST /v1/leases" + head + "Content-Length: 1000000\r\n\r\n" + strings.Repeat(" ", 999_999)
		answer := func(conn net.Conn, request string) string {
			go func() { _, _ = io.WriteString(conn, request) }()
			w, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			return w.Status + " " + string(b)
		}
		connect := serve(t, "member")
		first := connect()
		defer first.Close()
		go func() { _, _ = io.WriteString(first, long) }()
		synctest.Wait()
		second := connect()
		defer second.Close()
		if got := answer(second, long); !strings.Contains(got, "503") || !strings.Contains(got, "a user may have 1310720 at once") {
			t.Errorf("the second long request is answered with %.300s", got)
		}
		third := connect()
		defer third.Close()
		if got := answer(third, "POST /v1/leases"+head+"Content-Length: 20\r\n\r\n{\"command\":[\"true\"]}"); !strings.Contains(
			got, "200",
		) {
			t.Errorf("a short request is answered with %.300s", got)
		}
		_ = first.Close() // It gives its memory back.
		synctest.Wait()
		fourth := connect()
		defer fourth.Close()
		if got := answer(fourth, long+"x"); !strings.Contains(got, "400") {
			t.Errorf("after the end of the first it is answered with %.300s", got)
		}
	})
}
