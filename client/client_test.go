package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortDir is a directory with a short path: the path of a socket may have 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve answers on a socket of its own until the test ends.
func serve(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // It ends with Close.
	}()
	c := &client.Client{Socket: path}
	t.Cleanup(func() {
		c.Close()
		s.Close()
		<-ended
	})
	return c
}

func answer(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func line(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v)
	_ = http.NewResponseController(w).Flush()
}

func refused(t *testing.T, err error) *api.Error {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) {
		t.Fatalf("the error is no refusal: %v", err)
	}
	return e
}

func TestUnreachable(t *testing.T) {
	for name, c := range map[string]struct {
		socket func(t *testing.T) string
		kind   api.Kind
		says   string
		hint   string
	}{
		"no socket": {func(t *testing.T) string { return filepath.Join(shortDir(t), "s") }, api.KindUnavailable, "no such socket", "systemctl start"},
		"no process listens": {func(t *testing.T) string {
			path := filepath.Join(shortDir(t), "s")
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
			return path
		}, api.KindUnavailable, "no process listens", "systemctl status"},
		"no socket but a file": {func(t *testing.T) string {
			path := filepath.Join(shortDir(t), "s")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}, api.KindUnavailable, "no process listens", "systemctl status"},
		"a path that is too long": {func(*testing.T) string { return "/" + strings.Repeat("x", 200) }, api.KindUnavailable, "invalid argument", "try again"},
	} {
		t.Run(name, func(t *testing.T) {
			c2 := client.Client{Socket: c.socket(t)}
			_, err := c2.Status(t.Context())
			e := refused(t, err)
			if e.Kind != c.kind || !strings.Contains(e.Message, c.says) || !strings.Contains(e.Message, c2.Socket) ||
				!strings.Contains(e.Hint, c.hint) {
				t.Errorf("refused as %s: %s (hint: %s)", e.Kind, e.Message, e.Hint)
			}
		})
	}
}

func TestNoPermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may open every socket: this needs an ordinary user")
	}
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	c := client.Client{Socket: path}
	if e := refused(t, c.Reload(t.Context())); e.Kind != api.KindDenied || !strings.Contains(e.Hint, "0666") {
		t.Errorf("refused as %s: %s (hint: %s)", e.Kind, e.Message, e.Hint)
	}
}

func TestZeroValue(t *testing.T) {
	if _, err := os.Stat(api.SocketPath); !errors.Is(err, os.ErrNotExist) {
		t.Skip("this host has a socket at " + api.SocketPath)
	}
	var c client.Client
	_, err := c.Info(t.Context())
	if e := refused(t, err); !strings.Contains(e.Message, api.SocketPath) {
		t.Errorf("it looked for the daemon elsewhere: %s", e.Message)
	}
	c.Close()
}

func TestRefusals(t *testing.T) {
	full := &api.Error{
		Kind:      api.KindConflict,
		Message:   "another change is under way",
		Hint:      "wait for it",
		Operation: "op-3",
		Fields:    []api.FieldError{{File: "a", Line: 1, Column: 2, Path: "p", Message: "m", Hint: "h"}},
	}
	for name, c := range map[string]struct {
		status int
		body   string
		want   *api.Error
	}{
		"in full":        {http.StatusConflict, mustJSON(map[string]any{"error": full}), full},
		"unknown kind":   {http.StatusTeapot, `{"error":{"kind":"later","message":"later"}}`, &api.Error{Kind: "later", Message: "later"}},
		"no JSON":        {http.StatusBadGateway, "<html>", &api.Error{Kind: api.KindInternal, Message: "gpushared answered 502 Bad Gateway without saying why"}},
		"no message":     {http.StatusForbidden, `{"error":{"kind":"denied"}}`, &api.Error{Kind: api.KindInternal, Message: "gpushared answered 403 Forbidden without saying why"}},
		"nothing at all": {http.StatusInternalServerError, "", &api.Error{Kind: api.KindInternal, Message: "gpushared answered 500 Internal Server Error without saying why"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			_, err := k.Plan(t.Context())
			if diff := cmp.Diff(c.want, refused(t, err)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestAnswersThatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		kind api.Kind
		hint string
	}{
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"yaml":"vers`)
			panic(http.ErrAbortHandler)
		}, api.KindUnavailable, "try again"},
		"no JSON":           {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, api.KindInternal, "different versions"},
		"of another schema": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"generation":"three"}`) }, api.KindInternal, "different versions"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := serve(t, c.h).Spec(t.Context())
			if e := refused(t, err); e.Kind != c.kind || !strings.Contains(e.Hint, c.hint) {
				t.Errorf("refused as %s: %s (hint: %s)", e.Kind, e.Message, e.Hint)
			}
		})
	}
}

// Every request is what the daemon's table of routes has.
func TestRequests(t *testing.T) {
	seven := uint64(7)
	for name, c := range map[string]struct {
		call func(c *client.Client) error
		want string
	}{
		"info":   {func(c *client.Client) error { _, err := c.Info(t.Context()); return err }, "GET /v1"},
		"status": {func(c *client.Client) error { _, err := c.Status(t.Context()); return err }, "GET /v1/status"},
		"status with sensors of now": {
			func(c *client.Client) error { _, err := c.StatusNow(t.Context()); return err }, "GET /v1/status?sensors=true",
		},
		"spec":     {func(c *client.Client) error { _, err := c.Spec(t.Context()); return err }, "GET /v1/spec"},
		"plan":     {func(c *client.Client) error { _, err := c.Plan(t.Context()); return err }, "GET /v1/plan"},
		"mig":      {func(c *client.Client) error { _, err := c.MIG(t.Context()); return err }, "GET /v1/mig"},
		"doctor":   {func(c *client.Client) error { _, err := c.Doctor(t.Context()); return err }, "GET /v1/doctor"},
		"counters": {func(c *client.Client) error { _, err := c.Counters(t.Context()); return err }, "GET /v1/counters"},
		"env":      {func(c *client.Client) error { _, err := c.Environment(t.Context()); return err }, "GET /v1/env"},
		"podman":   {func(c *client.Client) error { _, err := c.PodmanOptions(t.Context()); return err }, "GET /v1/env?podman=true"},
		"reload":   {func(c *client.Client) error { return c.Reload(t.Context()) }, "POST /v1/reload"},
		"retry": {func(c *client.Client) error {
			_, err := c.RetryGPU(t.Context(), "GPU-1/2 ?", client.RetryOptions{})
			return err
		}, "POST /v1/gpus/GPU-1%2F2%20%3F/retry"},
		"retry with force": {func(c *client.Client) error {
			_, err := c.RetryGPU(t.Context(), "0", client.RetryOptions{Force: true, AllowReset: true})
			return err
		}, "POST /v1/gpus/0/retry?allow-reset=1&force=1"},
		"retry with a permission": {func(c *client.Client) error {
			_, err := c.RetryGPU(t.Context(), "0", client.RetryOptions{Resets: []string{"GPU-a"}})
			return err
		}, "POST /v1/gpus/0/retry?reset=GPU-a"},
		"freeze": {func(c *client.Client) error { _, err := c.FreezeTenant(t.Context(), "a b"); return err }, "POST /v1/tenants/a%20b/freeze"},
		"thaw":   {func(c *client.Client) error { _, err := c.ThawTenant(t.Context(), "red"); return err }, "POST /v1/tenants/red/thaw"},
		"stop":   {func(c *client.Client) error { return c.StopLease(t.Context(), "red-1") }, "DELETE /v1/leases/red-1"},
		"apply": {func(c *client.Client) error {
			_, err := c.Apply(t.Context(), []byte("version: v1\n"), client.ApplyOptions{})
			return err
		}, "PUT /v1/spec application/yaml version: v1\n"},
		"apply with all": {func(c *client.Client) error {
			_, err := c.Apply(t.Context(), []byte("x"), client.ApplyOptions{File: "a b.yaml", Check: true, Diff: true, Force: true, AllowReset: true, IfMatch: &seven})
			return err
		}, `PUT /v1/spec?allow-reset=1&check=1&diff=1&file=a+b.yaml&force=1 application/yaml "7" x`},
		"operation":        {func(c *client.Client) error { _, err := c.Operation(t.Context(), "op-1", 4, 0); return err }, "GET /v1/operations/op-1"},
		"operation's news": {func(c *client.Client) error { _, err := c.Operation(t.Context(), "op-1", 4, time.Minute); return err }, "GET /v1/operations/op-1?after=4&wait=1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			k := serve(t, func(w http.ResponseWriter, q *http.Request) {
				b, _ := io.ReadAll(q.Body)
				parts := []string{q.Method, q.URL.RequestURI(), q.Header.Get("Content-Type"), q.Header.Get("If-Match"), string(b)}
				got = strings.TrimRight(
					strings.Join(strings.FieldsFunc(strings.Join(parts, "\x00"), func(r rune) bool { return r == 0 }), " "), " ",
				)
				if q.Host != "gpushare" || q.Header.Get("Origin") != "" {
					t.Errorf("the host is %q, the origin %q: the daemon refuses what a browser could send", q.Host, q.Header.Get("Origin"))
				}
				answer(w, http.StatusOK, map[string]any{})
			})
			if err := c.call(k); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("received %q, want %q", got, c.want)
			}
		})
	}
}

// A list without elements is a list when it is encoded again.
func TestListsAreNotNil(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, map[string]any{"gpus": nil}) })
	s, err := c.Status(t.Context())
	if err != nil || s.GPUs == nil || s.Tenants == nil || s.Leases == nil {
		t.Errorf("the status is %+v, %v", s, err)
	}
	p, err := c.Plan(t.Context())
	if err != nil || p.Steps == nil {
		t.Errorf("the plan is %+v, %v", p, err)
	}
	r, err := c.Apply(t.Context(), nil, client.ApplyOptions{})
	if err != nil || r.Plan.Steps == nil {
		t.Errorf("the result is %+v, %v", r, err)
	}
}

func lease(t *testing.T, c *client.Client) (granted *api.LeaseGrant, progress []int, err error) {
	t.Helper()
	granted, err = c.Lease(t.Context(), api.LeaseRequest{Tenant: "red", Command: []string{"true"}}, func(g *api.LeaseGrant) {
		if g.Lease != nil {
			progress = append(progress, g.Lease.Position)
		}
	})
	return granted, progress, err
}

func TestLeaseStream(t *testing.T) {
	queued := func(w http.ResponseWriter, n int) {
		line(w, api.LeaseGrant{Lease: &api.Lease{ID: "red-1", State: api.LeaseQueued, Position: n}})
	}
	t.Run("granted after a wait", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, q *http.Request) {
			var received api.LeaseRequest
			if err := json.NewDecoder(q.Body).Decode(&received); err != nil || received.Tenant != "red" ||
				q.Method+q.URL.Path != "POST/v1/leases" {
				t.Errorf("%s %s of %+v, %v", q.Method, q.URL.Path, received, err)
			}
			queued(w, 2)
			queued(w, 1)
			line(w, api.LeaseGrant{
				Lease:       &api.Lease{ID: "red-1", State: api.LeaseRunning},
				Environment: map[string]string{"A": "b"},
				Selected:    "grant part",
			})
		})
		g, progress, err := lease(t, c)
		if err != nil || g.Environment["A"] != "b" || g.Selected != "grant part" {
			t.Fatalf("granted %+v, %v", g, err)
		}
		if diff := cmp.Diff([]int{2, 1}, progress); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("granted with nothing to set", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			line(w, api.LeaseGrant{Lease: &api.Lease{ID: "red-1", State: api.LeaseRunning}, Environment: map[string]string{}})
		})
		if g, progress, err := lease(t, c); err != nil || g.Lease.ID != "red-1" || len(progress) != 0 {
			t.Errorf("granted %+v after %v, %v", g, progress, err)
		}
	})
	t.Run("refused in the stream", func(t *testing.T) {
		want := &api.Error{Kind: api.KindUnavailable, Message: "waited 1s", Hint: "wait longer"}
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			queued(w, 1)
			line(w, api.LeaseGrant{Error: want})
		})
		_, progress, err := lease(t, c)
		if diff := cmp.Diff(want, refused(t, err)); diff != "" || len(progress) != 1 {
			t.Errorf("after %v: %s", progress, diff)
		}
	})
	t.Run("refused at once", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusForbidden, map[string]any{"error": api.Error{Kind: api.KindDenied, Message: "you may not"}})
		})
		if _, _, err := lease(t, c); refused(t, err).Kind != api.KindDenied {
			t.Error(err)
		}
	})
	for name, last := range map[string]string{"cut off": "", "cut off in a line": `{"lease":{"id`, "no JSON": "oops\n"} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				queued(w, 3)
				_, _ = io.WriteString(w, last)
			})
			c.Patience = time.Nanosecond
			_, progress, err := lease(t, c)
			if e := refused(t, err); e.Kind != api.KindUnavailable || !strings.Contains(e.Hint, "again") || len(progress) != 1 {
				t.Errorf("after %v: %s: %s", progress, e.Kind, e.Message)
			}
		})
	}
	t.Run("the daemon comes back", func(t *testing.T) {
		var keys []string
		c := serve(t, func(w http.ResponseWriter, q *http.Request) {
			var received api.LeaseRequest
			if err := json.NewDecoder(q.Body).Decode(&received); err != nil {
				t.Error(err)
			}
			keys = append(keys, received.Key)
			if len(keys) < 3 {
				queued(w, 2)
				panic(http.ErrAbortHandler)
			}
			line(w, api.LeaseGrant{Lease: &api.Lease{ID: "red-1", State: api.LeaseRunning}})
		})
		g, progress, err := lease(t, c)
		if err != nil || g.Lease.ID != "red-1" || len(progress) != 2 {
			t.Errorf("granted %+v after %v, %v", g, progress, err)
		}
		if len(keys) != 3 || keys[0] == "" || keys[1] != keys[0] || keys[2] != keys[0] {
			t.Errorf("the keys are %q", keys)
		}
	})
	t.Run("what could not be run has its exit code", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			line(w, api.LeaseGrant{Error: &api.Error{Kind: api.KindInvalid, Message: "cannot run x"}, ExitCode: 127})
		})
		if g, _, err := lease(t, c); refused(t, err).Message != "cannot run x" || g.ExitCode != 127 {
			t.Errorf("granted %+v, %v", g, err)
		}
	})
	t.Run("the user gives up", func(t *testing.T) {
		ended := make(chan struct{})
		c := serve(t, func(w http.ResponseWriter, q *http.Request) {
			queued(w, 1)
			<-q.Context().Done()
			close(ended)
		})
		ctx, cancel := context.WithCancel(t.Context())
		_, err := c.Lease(ctx, api.LeaseRequest{}, func(*api.LeaseGrant) { cancel() })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		<-ended // The daemon notices it.
	})
}

func TestEvents(t *testing.T) {
	t.Run("until the user has enough", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, q *http.Request) {
			for n := range 3 {
				line(w, api.Event{Seq: uint64(n + 1), Kind: "lease.started"})
			}
			<-q.Context().Done()
		})
		ctx, cancel := context.WithCancel(t.Context())
		var seqs []uint64
		err := c.Events(ctx, func(e api.Event) {
			if seqs = append(seqs, e.Seq); len(seqs) == 3 {
				cancel()
			}
		})
		if diff := cmp.Diff([]uint64{1, 2, 3}, seqs); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
	t.Run("until the daemon goes", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { line(w, api.Event{Seq: 1}) })
		n := 0
		err := c.Events(t.Context(), func(api.Event) { n++ })
		if e := refused(t, err); e.Kind != api.KindUnavailable || e.Hint == "" || n != 1 {
			t.Errorf("after %d events: %s: %s", n, e.Kind, e.Message)
		}
	})
	t.Run("refused", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusForbidden, map[string]any{"error": api.Error{Kind: api.KindDenied, Message: "you may not"}})
		})
		if e := refused(t, c.Events(t.Context(), nil)); e.Kind != api.KindDenied {
			t.Error(e)
		}
	})
}

func TestFollow(t *testing.T) {
	ended := time.Unix(1000, 0).UTC()
	op := func(version uint64) *api.Operation {
		o := &api.Operation{ID: "op-1", State: "running", Version: version}
		if version == 4 {
			o.State, o.Finished = "done", &ended
		}
		return o
	}
	t.Run("to its end", func(t *testing.T) {
		var after []string
		c := serve(t, func(w http.ResponseWriter, q *http.Request) {
			after = append(after, q.URL.Query().Get("after"))
			answer(w, http.StatusOK, op(uint64(len(after))+1))
		})
		var versions []uint64
		last, err := c.Follow(t.Context(), op(1), func(o *api.Operation) { versions = append(versions, o.Version) })
		if err != nil || last.State != "done" {
			t.Fatalf("it ended as %+v, %v", last, err)
		}
		if diff := cmp.Diff([]string{"1", "2", "3"}, after); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]uint64{1, 2, 3, 4}, versions); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("that has ended", func(t *testing.T) {
		var c client.Client // No request is sent.
		n := 0
		if last, err := c.Follow(t.Context(), op(4), func(*api.Operation) { n++ }); err != nil || n != 1 || last.Version != 4 {
			t.Errorf("seen %d times, %v", n, err)
		}
	})
	t.Run("when the daemon goes", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Query().Get("after") == "1" {
				answer(w, http.StatusOK, op(2))
				return
			}
			panic(http.ErrAbortHandler)
		})
		last, err := c.Follow(t.Context(), op(1), func(*api.Operation) {})
		if e := refused(t, err); e.Kind != api.KindUnavailable || last.Version != 2 {
			t.Errorf("the last version is %d: %v", last.Version, err)
		}
	})
	t.Run("until the user gives up", func(t *testing.T) {
		received := make(chan struct{})
		c := serve(t, func(_ http.ResponseWriter, q *http.Request) {
			close(received)
			<-q.Context().Done()
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-received; cancel() }()
		if _, err := c.Follow(ctx, op(1), func(*api.Operation) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// A deadline is an error of its own, not a daemon that cannot be reached.
func TestDeadline(t *testing.T) {
	c := serve(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, api.SpecDocument{Generation: 3})
	})
	errs := make(chan error)
	const many = 32
	for range many {
		go func() {
			d, err := c.Spec(t.Context())
			if err == nil && d.Generation != 3 {
				err = fmt.Errorf("generation %d", d.Generation)
			}
			errs <- err
		}()
	}
	for range many {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// A daemon that was restarted is met again by the same client.
func TestRestart(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	c := client.Client{Socket: path}
	defer c.Close()
	for range 3 {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{
			Handler: http.HandlerFunc(
				func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, api.Info{API: "v1"}) },
			),
			ReadHeaderTimeout: time.Minute,
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(l) }()
		if info, err := c.Info(t.Context()); err != nil || info.API != "v1" {
			t.Errorf("%+v, %v", info, err)
		}
		s.Close()
		<-ended
		if _, err := c.Info(t.Context()); refused(t, err).Kind != api.KindUnavailable {
			t.Error(err)
		}
	}
	if err := syscall.Unlink(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// A daemon that takes requests and answers none was not reached, also by a request that is repeated.
func TestUnreached(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	c := client.Client{Socket: path, Patience: time.Millisecond}
	_, status := c.Status(t.Context())
	_, lease := c.Lease(t.Context(), api.LeaseRequest{Command: []string{"true"}}, func(*api.LeaseGrant) {})
	for name, err := range map[string]error{"status": status, "a lease": lease} {
		if e := refused(
			t,
			err,
		); !client.Unreached(err) || e.Kind != api.KindUnavailable ||
			!strings.Contains(e.Hint, "systemctl status gpushared") {
			t.Errorf("%s: %v, hint %q", name, err, e.Hint)
		}
	}
	if client.Unreached(&api.Error{Kind: api.KindUnavailable, Message: "the driver is not loaded"}) {
		t.Error("an answer counts as none")
	}
}

// A daemon that is older than the client does not know the permission to reset some GPUs: it gets the one that it knows. What a newer one
// refuses is not sent again.
func TestThePermissionOfAnOlderDaemon(t *testing.T) {
	calls := map[string]func(c *client.Client) error{
		"/v1/spec": func(c *client.Client) error {
			_, err := c.Apply(t.Context(), []byte("x"), client.ApplyOptions{Resets: []string{"GPU-a", "GPU-b"}})
			return err
		},
		"/v1/gpus/0/retry": func(c *client.Client) error {
			_, err := c.RetryGPU(t.Context(), "0", client.RetryOptions{Resets: []string{"GPU-a", "GPU-b"}})
			return err
		},
	}
	for name, c := range map[string]struct {
		features []string
		want     []string
		refused  bool
	}{
		"older": {[]string{"spec"}, []string{"reset=GPU-a%2CGPU-b", "allow-reset=1"}, false},
		"newer": {api.Features(), []string{"reset=GPU-a%2CGPU-b"}, true},
	} {
		for path, call := range calls {
			t.Run(name+path, func(t *testing.T) {
				var got []string
				k := serve(t, func(w http.ResponseWriter, q *http.Request) {
					if q.URL.Path == "/v1" {
						_ = json.NewEncoder(w).Encode(api.Info{Features: c.features})
						return
					}
					got = append(got, q.URL.RawQuery)
					if q.URL.Query().Has("reset") {
						w.WriteHeader(api.KindInvalid.Status())
						_ = json.NewEncoder(w).Encode(map[string]any{"error": &api.Error{Kind: api.KindInvalid, Message: "no"}})
						return
					}
					_, _ = io.WriteString(w, "{}")
				})
				if err := call(k); (err != nil) != c.refused || !slices.Equal(got, c.want) {
					t.Errorf("it sent %q, want %q: %v", got, c.want, err)
				}
			})
		}
	}
}
