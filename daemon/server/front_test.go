package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/front"
	"github.com/gpushare/gpushare/internal/kernel/passed"
	"github.com/gpushare/gpushare/internal/loop"
)

// taken is a front in the hands of the test: it gets the connections, and sends what the test wants.
type taken struct {
	ends chan [2]net.Conn // the connection of a caller, and the pair to the daemon
	fail error
}

func (f *taken) Await(context.Context) error { return f.fail }

func (f *taken) HandOver(_ context.Context, client *net.UnixConn, uid int) (*net.UnixConn, error) {
	if f.fail != nil {
		return nil, f.fail
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	own, err := connOf(pair[0])
	if err != nil {
		return nil, err
	}
	theirs, err := connOf(pair[1])
	if err != nil {
		return nil, err
	}
	raw, err := client.File()
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	caller, err := net.FileConn(raw)
	if err != nil {
		return nil, err
	}
	f.ends <- [2]net.Conn{caller, theirs}
	return own.(*net.UnixConn), nil
}

func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "pair")
	defer f.Close()
	return net.FileConn(f)
}

// notAdmin is a uid that is no administrator: that of the test, or another one that root can be for a connection.
func notAdmin() int {
	if uid := os.Geteuid(); uid != 0 {
		return uid
	}
	return 1001
}

// dialAsMember connects with that uid.
func dialAsMember(t *testing.T, socket string) net.Conn {
	t.Helper()
	return dialAs(t, socket, notAdmin())
}

// dialAs connects with a uid, which needs root if it is another one, from a thread of its own.
func dialAs(t *testing.T, socket string, uid int) net.Conn {
	t.Helper()
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		if os.Geteuid() != uid {
			runtime.LockOSThread() // It is not unlocked: the thread ends with the goroutine.
			if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
				done <- result{-1, errno}
				return
			}
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		}
		done <- result{fd, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	c, err := connOf(r.fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// serveTaken serves a few routes on a socket with a front of the test.
func serveTaken(t *testing.T, f *taken) (socket string, s *Server) {
	t.Helper()
	dir, err := os.MkdirTemp("", "server-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "socket")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	r := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	tasks := &loop.Group{}
	ids := NewIdentities(r, tasks, -1, "off")
	ids.Table.Store(
		&IdentityTable{Self: -1, AdminGID: -1, ObserverGID: -1, Tenants: []TenantMembers{{Name: "red", UIDs: []int{notAdmin()}}}},
	)
	who := func(c *Call) error {
		return c.Reply(http.StatusOK, map[string]any{
			"uid":     c.Caller.UID,
			"pid":     c.Caller.Process.PID,
			"role":    c.Caller.Role(),
			"started": c.Caller.Process.Start != 0,
		})
	}
	s = &Server{Reporter: r, Front: f, Tasks: tasks, Identities: ids, Routes: []Route{
		{Method: http.MethodGet, Pattern: "/v1", Access: Anyone, What: "read the versions", Bound: Reads, Handle: who},
		{
			Method:  http.MethodPut,
			Pattern: "/v1/spec",
			Access:  Admin,
			What:    "change the spec",
			Bound:   Changes,
			Handle:  who,
			More:    More{Body: Document{}},
		},
		{
			Method:  http.MethodGet,
			Pattern: "/v1/events",
			Access:  Reader,
			What:    "follow events",
			Bound:   Events,
			Handle:  func(c *Call) error { <-c.Ctx().Done(); return nil },
		},
	}}
	capped, err := NewCappedListener(l, ids.HasRole)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	serving := s.NewServing(ctx)
	served := make(chan error, 1)
	go func() { served <- serving.Serve(capped) }()
	t.Cleanup(func() {
		cancel()
		end, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		_ = serving.Shutdown(end) // Connections of the test may be open.
		_ = serving.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("it ended with %v", err)
		}
		tasks.Wait()
	})
	return socket, s
}

func exchange(t *testing.T, c net.Conn, text string) (*http.Response, string) {
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

// A front in the hands of an attacker is, on each connection, who opened that connection: whatever it sends.
func TestFrontCannotClaimAnotherIdentity(t *testing.T) {
	f := &taken{ends: make(chan [2]net.Conn, 4)}
	socket, _ := serveTaken(t, f)
	dialAsMember(t, socket)
	ends := <-f.ends
	defer ends[0].Close()
	defer ends[1].Close()
	pair := ends[1]
	const claims = "X-Forwarded-For: root\r\nAuthorization: Basic cm9vdDo=\r\nX-Uid: 0\r\nX-Remote-User: root\r\n"
	res, text := exchange(t, pair, "GET /v1 HTTP/1.1\r\nHost: gpushare\r\n"+claims+"\r\n")
	var who struct {
		UID, PID int
		Role     string
		Started  bool
	}
	if err := json.Unmarshal([]byte(text), &who); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s: %v", res.StatusCode, text, err)
	}
	if who.UID != notAdmin() || who.PID != os.Getpid() || who.Role != "member" ||
		!who.Started && os.Geteuid() != 0 { // Of root the thread that connected has another uid than the process.
		t.Errorf("the daemon takes it for %+v", who)
	}
	if res, text := exchange(
		t, pair, "PUT /v1/spec HTTP/1.1\r\nHost: gpushare\r\n"+claims+"Content-Length: 0\r\n\r\n",
	); res.StatusCode != http.StatusForbidden {
		t.Errorf("a route of administrators: %d %s", res.StatusCode, text)
	}
	// Descriptors and credentials that are sent along change nothing: root's own pid, and another connection.
	raw, err := pair.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		oob := unix.UnixRights(int(fd))
		if os.Geteuid() == 0 {
			oob = append(oob, unix.UnixCredentials(&unix.Ucred{Pid: 1})...)
		}
		err := unix.Sendmsg(int(fd), []byte("GET /v1 HTTP/1.1\r\nHost: gpushare\r\n\r\n"), oob, nil, 0)
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	res, err = http.ReadResponse(bufio.NewReader(pair), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil || json.Unmarshal(b, &who) != nil || who.UID != notAdmin() || who.Role != "member" {
		t.Errorf("with credentials it is %s, %v", b, err)
	}
	// What is no HTTP ends this connection only.
	if _, err := io.WriteString(pair, "\x16\x03\x01\x00\xa5 garbage\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(pair); err != nil && !errors.Is(err, unix.ECONNRESET) || strings.Contains(string(rest), " 200 ") {
		t.Errorf("garbage is answered with %q, %v", rest, err)
	}
	dialAsMember(t, socket)
	next := <-f.ends
	defer next[0].Close()
	defer next[1].Close()
	if res, _ := exchange(t, next[1], "GET /v1 HTTP/1.1\r\nHost: gpushare\r\n\r\n"); res.StatusCode != http.StatusOK {
		t.Errorf("the next connection gets %d", res.StatusCode)
	}
}

// A caller whose group becomes that of administrators is no administrator on a connection of the front, and one that was is served
// as such only on a connection that the front does not have.
func TestRoleThatChangesOnAConnection(t *testing.T) {
	f := &taken{ends: make(chan [2]net.Conn, 4)}
	socket, s := serveTaken(t, f)
	dialAsMember(t, socket)
	ends := <-f.ends
	defer ends[0].Close()
	defer ends[1].Close()
	before := *s.Identities.Table.Load()
	now := before
	now.Self = notAdmin()
	s.Identities.Table.Store(&now)
	if res, text := exchange(
		t, ends[1], "PUT /v1/spec HTTP/1.1\r\nHost: gpushare\r\nContent-Length: 0\r\n\r\n",
	); res.StatusCode != http.StatusServiceUnavailable ||
		!res.Close {
		t.Errorf("through the front: %d %s", res.StatusCode, text)
	}
	direct := dialAsMember(t, socket)
	if res, text := exchange(t, direct, "GET /v1 HTTP/1.1\r\nHost: gpushare\r\n\r\n"); res.StatusCode != http.StatusOK ||
		!strings.Contains(text, `"admin"`) {
		t.Errorf("an administrator: %d %s", res.StatusCode, text)
	}
	s.Identities.Table.Store(&before)
	if res, text := exchange(
		t, direct, "GET /v1 HTTP/1.1\r\nHost: gpushare\r\n\r\n",
	); res.StatusCode != http.StatusServiceUnavailable ||
		!res.Close {
		t.Errorf("who was an administrator: %d %s", res.StatusCode, text)
	}
}

// A refusal of the front is one of the daemon: with its status, counted, and of a route that the caller may not use the daemon says that.
func TestRefusalsOfTheFront(t *testing.T) {
	f := &taken{ends: make(chan [2]net.Conn, 4)}
	socket, _ := serveTaken(t, f)
	dialAsMember(t, socket)
	ends := <-f.ends
	defer ends[0].Close()
	defer ends[1].Close()
	for _, c := range []struct {
		name   string
		r      front.Refusal
		status int
		text   string
	}{
		{"another method", front.Refusal{Status: 405, Allow: []string{"GET"}, Error: api.Error{Kind: api.KindInvalid, Message: "its methods are GET"}}, 405, "its methods"},
		{"methods that are none", front.Refusal{Status: 405, Allow: []string{"PURGE, x", "GET", "GET\r\nSet-Cookie: x"}, Error: api.Error{Kind: api.KindInvalid, Message: "its methods are GET"}}, 405, "its methods"},
		{"a status that no answer has", front.Refusal{Status: 1, Error: api.Error{Kind: api.KindInvalid, Message: "fine"}}, 500, "fine"},
		{"a wrong key", front.Refusal{Status: 400, Route: "GET /v1", Error: api.Error{Kind: api.KindInvalid, Message: "unknown key"}}, 400, "unknown key"},
		{"a route of administrators", front.Refusal{Status: 400, Route: "PUT /v1/spec", Error: api.Error{Kind: api.KindInvalid, Message: "unknown key"}}, 403, "may not change the spec"},
		{"no refusal", front.Refusal{Status: 200, Error: api.Error{Kind: api.KindInvalid, Message: "fine"}}, 500, "fine"},
		{"no status", front.Refusal{Status: 9999, Error: api.Error{Kind: api.KindInvalid, Message: "fine"}}, 500, "fine"},
	} {
		b, err := json.Marshal(c.r)
		if err != nil {
			t.Fatal(err)
		}
		res, text := exchange(
			t, ends[1],
			"POST "+front.RefusalPath+" HTTP/1.1\r\nHost: gpushare\r\nContent-Length: "+strconv.Itoa(len(b))+"\r\n\r\n"+string(b),
		)
		if res.StatusCode != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%s: %d %s", c.name, res.StatusCode, text)
		}
		if c.status == 405 && res.Header.Get("Allow") != "GET" {
			t.Errorf("%s: allowed are %q", c.name, res.Header.Get("Allow"))
		}
	}
}

// No caller reaches the route of refusals directly.
func TestRefusalsAreOfTheFrontOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the caller is an administrator")
	}
	socket, _ := serveTaken(t, &taken{ends: make(chan [2]net.Conn, 4)})
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if res, text := exchange(
		t, c, "POST "+front.RefusalPath+" HTTP/1.1\r\nHost: gpushare\r\nContent-Length: 2\r\n\r\n{}",
	); res.StatusCode != http.StatusNotFound {
		t.Errorf("%d %s", res.StatusCode, text)
	}
}

// Without a front callers get an answer for a request that was not read, and their connection ends.
func TestAnswerWithoutAFront(t *testing.T) {
	socket, _ := serveTaken(t, &taken{fail: errors.New("it does not run")})
	c := dialAsMember(t, socket)
	res, text := exchange(t, c, "POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nContent-Length: 1000000\r\n\r\n{")
	if res.StatusCode != http.StatusServiceUnavailable || !res.Close || !strings.Contains(text, `"unavailable"`) ||
		!strings.Contains(text, "gpushare-front does not run") {
		t.Errorf("%d %s", res.StatusCode, text)
	}
}

// A connection that another one replaces ends, also when the front has it.
func TestReplacedConnectionOfTheFront(t *testing.T) {
	own, other, err := pairOf()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c := &cappedConn{Conn: &passed.Conn{UnixConn: own}, l: &cappedListener{}, peer: &Peer{}}
	c.end.Store(own)
	replaced, theirs, err := pairOf()
	if err != nil {
		t.Fatal(err)
	}
	defer replaced.Close()
	defer theirs.Close()
	c.end.Store(replaced)
	own.Close()
	c.shutDown()
	if err := theirs.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the pair of a replaced connection reads %d, %v", n, err)
	}
}

func pairOf() (a, b *net.UnixConn, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	first, errFirst := connOf(pair[0])
	second, errSecond := connOf(pair[1])
	if err := errors.Join(errFirst, errSecond); err != nil {
		return nil, nil, err
	}
	return first.(*net.UnixConn), second.(*net.UnixConn), nil
}
