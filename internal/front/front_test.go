package front

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/request"
)

// A server of net/http waits half a second before it closes some connections.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// table has a route of each kind.
var table = Table{Routes: []Route{
	{Method: http.MethodGet, Pattern: "/v1/status", What: "read the status", Query: request.Query{"all": request.Flag, "of": request.Text}},
	{Method: http.MethodGet, Pattern: "/v1/events", What: "follow events"},
	{Method: http.MethodPost, Pattern: "/v1/leases", What: "run on a GPU", Body: "LeaseRequest"},
	{Method: http.MethodDelete, Pattern: "/v1/leases/{id}", What: "stop a lease"},
	{Method: http.MethodPut, Pattern: "/v1/spec", What: "change the spec", Admin: true},
}}

// sockets returns the two ends of a pair.
func sockets(t testing.TB, kind int) (a, b *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends []*net.UnixConn
	for _, fd := range pair {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends = append(ends, c.(*net.UnixConn))
	}
	return ends[0], ends[1]
}

// daemon is what the daemon sees of callers.
type daemon struct {
	control *net.UnixConn
	conns   chan net.Conn
	seen    chan string // each request, as it arrived
}

func (d *daemon) Accept() (net.Conn, error) {
	c, ok := <-d.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (d *daemon) Close() error   { return nil }
func (d *daemon) Addr() net.Addr { return &net.UnixAddr{Name: "pair"} }

// serve runs a front, and a daemon that answers with handle.
func serve(t *testing.T, handle http.HandlerFunc) *daemon {
	t.Helper()
	f, err := New(table, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	own, theirs := sockets(t, unix.SOCK_SEQPACKET)
	d := &daemon{control: own, conns: make(chan net.Conn), seen: make(chan string, 16)}
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(t.Context(), theirs) }()
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		text := q.Method + " " + q.RequestURI
		if role := q.Header.Values(api.RoleHeader); len(role) > 0 {
			text += fmt.Sprintf(" as %s", role)
		}
		for _, key := range []string{"Cookie", "X-Anything", "User-Agent", "Content-Type"} {
			if q.Header.Get(key) != "" {
				text += " " + key
			}
		}
		select {
		case d.seen <- strings.TrimSpace(text + " " + strings.TrimSpace(string(b))):
		default:
		}
		handle(w, q)
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(d) // It ends with an error.
	}()
	t.Cleanup(func() {
		own.Close()
		if err := <-ended; err != nil {
			t.Errorf("the front failed: %v", err)
		}
		close(d.conns)
		_ = s.Close()
		<-served
	})
	return d
}

// connect passes a connection to the front, and returns the end of its caller.
func (d *daemon) connect(t *testing.T) *net.UnixConn {
	t.Helper()
	caller, accepted := sockets(t, unix.SOCK_STREAM)
	end, err := HandOver(d.control, accepted, 1001)
	if err != nil {
		t.Fatal(err)
	}
	accepted.Close()
	d.conns <- end
	if err := caller.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return caller
}

// answerTo sends a request and reads the answer.
func answerTo(t *testing.T, c net.Conn, text string) (*http.Response, string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

const head = " HTTP/1.1\r\nHost: gpushare\r\n"

// The daemon gets what was understood, encoded again, and nothing else of what the caller sent.
func TestRequestsAreEncodedAgain(t *testing.T) {
	d := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Inner", "of the daemon")
		_, _ = io.WriteString(w, "answered")
	})
	body := func(b string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(b), b) }
	for _, c := range []struct{ name, request, want string }{
		{"a head", "GET /v1/status?of=a%20b&all=1" + head + "Cookie: x\r\nX-Anything: y\r\nUser-Agent: z\r\n\r\n", "GET /v1/status?all=1&of=a+b"},
		{"an absolute address", "GET http://gpushare/v1/status HTTP/1.1\r\nHost: gpushare\r\n\r\n", "GET /v1/status"},
		{"a part of the path", "DELETE /v1/leases/a%2Fb%0d%0aX:%20y" + head + "\r\n", "DELETE /v1/leases/a%2Fb%0D%0AX:%20y"},
		{"a body", "POST /v1/leases" + head + body("\n{ \"command\" : [\"a\", \"<\\u00e4\"],\"wait\":\"90s\" }\n"), `POST /v1/leases {"command":["a","<ä"],"wait":"1m30s"}`},
		{"chunks", "POST /v1/leases" + head + "Transfer-Encoding: chunked\r\n\r\n4\r\n{\"co\r\nf\r\nmmand\": [\"x\"]}\n\r\n0\r\n\r\n", `POST /v1/leases {"command":["x"]}`},
		{"a role", "GET /v1/status" + head + "gpushare-role: engine\r\n\r\n", "GET /v1/status as [engine]"},
		{"a role of a body", "POST /v1/leases" + head + "Gpushare-Role: engine\r\n" + body(`{"command":["x"]}`), `POST /v1/leases as [engine] {"command":["x"]}`},
		{"a route of administrators", "PUT /v1/spec?force=1" + head + body("version: v1\n"), "PUT /v1/spec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, text := answerTo(t, d.connect(t), c.request)
			if got := <-d.seen; got != c.want {
				t.Errorf("the daemon got %q, want %q", got, c.want)
			}
			if res.StatusCode != http.StatusOK || text != "answered" || res.Header.Get("Content-Type") != "application/json" ||
				res.Header.Get("X-Inner") != "" {
				t.Errorf("the caller got %d %q %v", res.StatusCode, text, res.Header)
			}
		})
	}
}

// What is not understood is a refusal, which the daemon counts and answers.
func TestRefusalsGoToTheDaemon(t *testing.T) {
	d := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "counted", http.StatusTeapot) })
	body := func(b string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(b), b) }
	for _, c := range []struct {
		name, request string
		status        int
		route, text   string
	}{
		{"no route", "GET /v1/nothing" + head + "\r\n", 404, "", "there is no GET /v1/nothing"},
		{"the path of a refusal", "POST " + RefusalPath + head + body("{}"), 404, "", "there is no POST"},
		{"another method", "POST /v1/status" + head + body(""), 405, "", "its methods are GET, HEAD"},
		{"a browser", "GET /v1/status" + head + "Origin: http://x\r\n\r\n", 403, "", "browsers"},
		{"another host", "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 403, "", "browsers"},
		{"an unknown key", "GET /v1/status?al=1" + head + "\r\n", 400, "GET /v1/status", `unknown key "al"`},
		{"another role", "GET /v1/status" + head + "Gpushare-Role: admin\r\n\r\n", 400, "GET /v1/status", `cannot answer with role ["admin"]`},
		{"no role", "GET /v1/status" + head + "Gpushare-Role:\r\n\r\n", 400, "GET /v1/status", `cannot answer with role [""]`},
		{"two roles", "GET /v1/status" + head + "Gpushare-Role: engine\r\nGpushare-Role: engine\r\n\r\n", 400, "GET /v1/status", "cannot answer with role"},
		{"a body where there is none", "GET /v1/status" + head + body("{}"), 400, "GET /v1/status", "has no body"},
		{"no JSON", "POST /v1/leases" + head + body("a: [*b]"), 400, "POST /v1/leases", "invalid character"},
		{"a key twice", "POST /v1/leases" + head + body(`{"command":["x"],"command":["y"]}`), 400, "POST /v1/leases", "more than once"},
		{"deep lists", "POST /v1/leases" + head + body(strings.Repeat("[", 4000)), 400, "POST /v1/leases", "levels"},
		{"too long", "POST /v1/leases" + head + body(strings.Repeat(" ", request.MaxBody+1)), 400, "POST /v1/leases", "the request of a lease is larger than 1 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, text := answerTo(t, d.connect(t), c.request)
			if res.StatusCode != http.StatusTeapot || text != "counted\n" {
				t.Errorf("the caller got %d %q", res.StatusCode, text)
			}
			got, ok := strings.CutPrefix(<-d.seen, "POST "+RefusalPath+" ")
			var r Refusal
			if err := request.Decode([]byte(got), &r); !ok || err != nil || r.Status != c.status || r.Route != c.route ||
				!strings.Contains(r.Error.Message, c.text) {
				t.Errorf("the daemon got %s, want %d of %q with %q: %v", got, c.status, c.route, c.text, err)
			}
		})
	}
}

// A stream is sent on as it comes; it ends in the daemon when its caller goes away.
func TestStreams(t *testing.T) {
	next, ended := make(chan struct{}), make(chan struct{})
	d := serve(t, func(w http.ResponseWriter, q *http.Request) {
		defer close(ended)
		for {
			_, _ = io.WriteString(w, "line\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-q.Context().Done():
				return
			}
		}
	})
	c := d.connect(t)
	if _, err := io.WriteString(c, "GET /v1/events"+head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(res.Body)
	for i := range 3 {
		if i > 0 {
			next <- struct{}{}
		}
		if line, err := in.ReadString('\n'); err != nil || line != "line\n" {
			t.Fatalf("line %d is %q, %v", i, line, err)
		}
	}
	c.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the daemon does not notice that its caller has gone")
	}
}

// A request that only waits ends too when its caller goes away.
func TestCallerWhoWaitsGoesAway(t *testing.T) {
	ended := make(chan struct{})
	d := serve(t, func(_ http.ResponseWriter, q *http.Request) {
		<-q.Context().Done()
		close(ended)
	})
	c := d.connect(t)
	if _, err := io.WriteString(c, "GET /v1/status"+head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	<-d.seen
	c.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the daemon does not notice that its caller has gone")
	}
}

// A caller who sends nothing after the request waits for its answer nevertheless, for as long as they read.
func TestCallerWhoOnlyReads(t *testing.T) {
	release, ended := make(chan struct{}), make(chan struct{})
	d := serve(t, func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-release:
			_, _ = io.WriteString(w, "answered")
		case <-q.Context().Done():
			close(ended)
		}
	})
	send := func() *net.UnixConn {
		c := d.connect(t)
		if _, err := io.WriteString(c, "GET /v1/status"+head+"\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-d.seen:
		case <-time.After(time.Minute):
			t.Fatal("the request does not reach the daemon")
		}
		return c
	}
	c := send()
	select {
	case <-ended:
		t.Fatal("the request ended while its caller waits")
	case <-time.After(2 * checkAgain):
	}
	release <- struct{}{}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "answered" {
		t.Errorf("the caller gets %q, %v", b, err)
	}
	send().Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the daemon does not notice that its caller has gone")
	}
}

// The end of the daemon's pair ends a connection at once while nothing is asked, and an answer that is not whole is seen as such.
func TestTheDaemonEndsAConnection(t *testing.T) {
	d := serve(t, func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.RequestURI, "/v1/events") {
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if q.URL.Query().Get("of") == "nothing" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, strings.Repeat("whole", 100_000))
	})
	res, text := answerTo(t, d.connect(t), "GET /v1/status"+head+"\r\n")
	if len(text) != 500_000 || !res.Close {
		t.Errorf("the last answer of a connection has %d bytes, close %v", len(text), res.Close)
	}
	c := d.connect(t)
	if _, err := io.WriteString(c, "GET /v1/events"+head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
		t.Fatal(err)
	} else if b, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an answer that was cut off is %q, %v", b, err)
	}
	c = d.connect(t)
	if _, err := io.WriteString(c, "GET /v1/status?of=nothing"+head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || len(b) != 0 {
		t.Errorf("without an answer of the daemon the caller gets %q, %v", b, err)
	}
	caller, accepted := sockets(t, unix.SOCK_STREAM)
	end, err := HandOver(d.control, accepted, 1001)
	if err != nil {
		t.Fatal(err)
	}
	accepted.Close()
	end.Close()
	if err := caller.SetDeadline(time.Now().Add(8 * time.Second)); err != nil { // Less than a head may take.
		t.Fatal(err)
	}
	if b, err := io.ReadAll(caller); err != nil || len(b) != 0 {
		t.Errorf("a connection that the daemon ended gets %q, %v", b, err)
	}
}

// A connection is used for one request after the other, also HEAD, whose answer has no body.
func TestConnectionIsUsedAgain(t *testing.T) {
	d := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answered") })
	c := d.connect(t)
	in := bufio.NewReader(c)
	for i := range 6 {
		method := []string{http.MethodGet, http.MethodHead}[i%2]
		if _, err := io.WriteString(c, method+" /v1/status"+head+"\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != map[string]string{http.MethodGet: "answered"}[method] {
			t.Fatalf("%s is answered with %q, %v", method, b, err)
		}
		<-d.seen
	}
}

// A connection that arrives without its descriptors harms no other one.
func TestIncompleteConnection(t *testing.T) {
	d := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answered") })
	for _, message := range []string{"1234", "12345678901234567890"} {
		if _, err := io.WriteString(d.control, message); err != nil {
			t.Fatal(err)
		}
	}
	if res, _ := answerTo(t, d.connect(t), "GET /v1/status"+head+"\r\n"); res.StatusCode != http.StatusOK {
		t.Errorf("the next connection gets %d", res.StatusCode)
	}
}

// A front does not serve routes whose bodies it does not know.
func TestUnknownBody(t *testing.T) {
	if _, err := New(Table{Routes: []Route{{Method: http.MethodPost, Pattern: "/v1/x", Body: "Unknown"}}}, slog.Default()); err == nil {
		t.Error("it serves a route whose body it does not know")
	}
	if name, ok := BodyName(api.LeaseRequest{}); name != "LeaseRequest" || !ok {
		t.Errorf("the body of a lease is %q, %v", name, ok)
	}
	if _, ok := BodyName(struct{ LeaseRequest int }{}); ok {
		t.Error("another type is taken for a body")
	}
}

// FuzzCanonical decodes bodies of callers: what is understood stays the same when it is decoded again, and nothing panics.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`{"command":["true"]}`, `{"tenant":"red","grant":"part","kind":"mig:2g.10gb","gpus":["0"],"command":["a","b"],"wait":"1h","max_time":"90s","key":"k"}`,
		`{"command":["x"],"detach":{"path":"/bin/true","dir":"/","environment":["A=b"],"umask":18}}`, `{"pid":7,"name":"x"}`, `{"unit":"a.service","wait":"0s"}`,
		`{"command":null}`, `{"command":["\ud800","\u2028<>&"]}`, "[[[[[[", `{"a":{"b":{"c":1}}}`, "a: &a [*a]", `{"command":["x"]} {}`, `{"Command":["x"]}`, "\xff", `{"wait":1e999}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, body := range bodies {
			once, err := Canonical(b, body)
			if err != nil {
				if _, ok := errors.AsType[*api.Error](err); !ok {
					t.Errorf("%s: %v is no error of the API", name, err)
				}
				continue
			}
			twice, err := Canonical(once, body)
			if err != nil || string(twice) != string(once) {
				t.Errorf("%s: %q is %q and then %q, %v", name, b, once, twice, err)
			}
			first, second := reflect.New(body), reflect.New(body)
			if json.Unmarshal(b, first.Interface()) != nil || json.Unmarshal(once, second.Interface()) != nil {
				t.Errorf("%s: %q or %q does not decode", name, b, once)
			}
		}
	})
}

// FuzzRequest sends what callers may send to a front: it answers or closes the connection, serves the next one, and the daemon gets
// only requests that it can read.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"GET /v1/status" + head + "\r\n", "POST /v1/leases" + head + "Content-Length: 20\r\n\r\n{\"command\":[\"true\"]}", "DELETE /v1/leases/%2e%2e%2f" + head + "\r\n",
		"POST /v1/leases" + head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "GET /v1/status?of=%0d%0a" + head + "\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET /v1/status" + head + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HEAD /v1/status" + head + "\r\nGET /v1/events" + head + "\r\n", "OPTIONS * HTTP/1.1\r\nHost: gpushare\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answered") })
		c := d.connect(t)
		if _, err := c.Write(b); err == nil {
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		}
		for {
			select {
			case got := <-d.seen:
				if strings.ContainsAny(strings.SplitN(got, "{", 2)[0], "\r\n") {
					t.Errorf("the daemon got %q", got)
				}
				continue
			default:
			}
			break
		}
		if res, _ := answerTo(t, d.connect(t), "GET /v1/status"+head+"\r\n"); res.StatusCode != http.StatusOK {
			t.Errorf("the next connection gets %d", res.StatusCode)
		}
	})
}
