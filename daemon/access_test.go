package daemon

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/test/scenarios"
)

// newVirtualWithUsers returns a whole daemon that knows the users of servertest.
func newVirtualWithUsers(t *testing.T) *virtual {
	t.Helper()
	w := newVirtual(t, nil, scenarios.Board{Model: "a100-sxm4-40gb"})
	w.startDaemon()
	w.tasks.Wait() // The first lookup of names has ended.
	dir := w.identities.Names
	dir.Passwd, dir.Group = servertest.Files(t)
	if err := dir.Refresh(t.Context(), nil, nil, false); err != nil {
		t.Fatal(err)
	}
	w.identities.Table.Store(servertest.Identities())
	return w
}

// mayUse returns the roles that may use each route of the API. A route that is missing here fails the test.
func mayUse() map[string][]string {
	all := []string{"admin", "observer", "member", "engine", "none"}
	withRole := []string{"admin", "observer", "member", "engine"}
	engines := []string{"admin", "engine"}
	adminsAndObservers := []string{"admin", "observer", "engine"} // An engine reads as an observer does.
	members := []string{"admin", "member"}
	admins := []string{"admin"}
	return map[string][]string{
		"GET /v1":                         all,
		"GET /v1/status":                  withRole,
		"GET /v1/events":                  withRole,
		"GET /v1/events/kept":             withRole,
		"GET /metrics":                    withRole,
		"GET /v1/spec":                    adminsAndObservers,
		"GET /v1/history":                 adminsAndObservers,
		"GET /v1/history/{generation}":    adminsAndObservers,
		"GET /v1/plan":                    adminsAndObservers,
		"GET /v1/operations":              adminsAndObservers,
		"GET /v1/operations/{id}":         adminsAndObservers,
		"GET /v1/maintenance":             adminsAndObservers,
		"POST /v1/maintenance":            admins,
		"POST /v1/maintenance/off":        admins,
		"GET /v1/doctor":                  adminsAndObservers,
		"GET /v1/mig":                     adminsAndObservers,
		"POST /v1/mig/import":             admins,
		"POST /v1/mig/remove":             admins,
		"GET /v1/counters":                adminsAndObservers,
		"GET /v1/audit":                   admins,
		"GET /v1/audit/verify":            admins,
		"GET /v1/usage":                   withRole,
		"GET /v1/idle":                    withRole,
		"GET /v1/leases":                  withRole,
		"GET /v1/leases/{id}/logs":        members,
		"POST /v1/leases":                 members,
		"POST /v1/leases/attach":          members,
		"POST /v1/containers":             admins,
		"POST /v1/engine/leases":          engines,
		"GET /v1/engine/leases/{key}":     engines,
		"GET /v1/engine/leases/{key}/cdi": engines,
		"DELETE /v1/engine/leases/{key}":  engines,
		"POST /v1/leases/{id}/release":    members,
		"DELETE /v1/leases/{id}":          members,
		"GET /v1/explain":                 withRole,
		"GET /v1/env":                     members,
		"GET /v1/mps/{id}":                adminsAndObservers,
		"GET /v1/mps/{id}/log":            admins,
		"POST /v1/mps/{id}/restart":       admins,
		"POST /v1/mps/{id}/drain":         admins,
		"POST /v1/mps/{id}/resume":        admins,
		"PUT /v1/spec":                    admins,
		"POST /v1/gpus/{id}/retry":        admins,
		"POST /v1/gpus/{id}/cordon":       admins,
		"POST /v1/gpus/{id}/uncordon":     admins,
		"POST /v1/reload":                 admins,
		"POST /v1/conditions/{id}/ack":    admins,
		"POST /v1/conditions/{id}/unack":  admins,
		"POST /v1/tenants/{name}/freeze":  admins,
		"POST /v1/tenants/{name}/thaw":    admins,
		"POST /v1/unmanage":               admins,
	}
}

// Every route limits what one user may have of it at once, and docs/security.md says the numbers.
func TestEveryRouteHasABound(t *testing.T) {
	text, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{} // by route
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 5 {
			continue
		}
		for _, route := range strings.Split(cells[1], ", ") {
			rows[strings.Trim(route, "`")] = cells
		}
	}
	kinds := map[string]server.Bound{}
	for _, r := range newVirtualWithUsers(t).routes() {
		name, b := r.Method+" "+r.Pattern, r.Bound
		if b.Kind == "" || b.Most < 1 || b.Most > 96 {
			t.Errorf("%s has no bound for one user: %+v", name, b)
		}
		if other, ok := kinds[b.Kind]; ok && other != b {
			t.Errorf("%s has another bound for %s than other routes", name, b.Kind)
		}
		kinds[b.Kind] = b
		slot, end := "before it waits", "waits |"
		if b.Reads() {
			slot = "with its answer"
		}
		if b.Lasts {
			end = "is refused |"
		}
		cells, ok := rows[name]
		if !ok {
			t.Errorf("docs/security.md has no row with %s", name)
		} else if cells[2] != strconv.Itoa(b.Most) || cells[3] != slot || cells[4] != end {
			t.Errorf("%s: docs/security.md says %q, the bound is %+v", name, cells[2:], b)
		}
	}
}

func TestAccessToEveryRoute(t *testing.T) {
	d, want, seen := newVirtualWithUsers(t), mayUse(), map[string]bool{}
	for _, r := range d.routes() {
		name := r.Method + " " + r.Pattern
		seen[name] = true
		t.Run(name, func(t *testing.T) {
			allowed, ok := want[name]
			if !ok {
				t.Fatal("the route is not in mayUse")
			}
			for caller, p := range servertest.Peers() {
				reached := false
				probe := r
				probe.Handle = func(c *server.Call) error { reached = true; return c.Reply(http.StatusOK, nil) }
				w := servertest.Request(
					http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { d.server.Serve(w, q, &probe) }), p, r.Method, "/v1",
					nil,
				)
				role := servertest.Roles()[caller]
				// An observer that is a member too has both roles.
				may := slices.Contains(allowed, role) || caller == "observer and member" && slices.Contains(allowed, "observer")
				if reached != may {
					t.Errorf("%s (%s): allowed %v, want %v", caller, role, reached, may)
				}
				if may {
					continue
				}
				e := servertest.ErrorOf(t, w)
				if w.Code != http.StatusForbidden || e.Kind != api.KindDenied || e.Hint == "" ||
					!strings.Contains(e.Message, "may not "+r.What) {
					t.Errorf("%s is refused with %d: %+v", caller, w.Code, e)
				}
			}
		})
	}
	for name := range want {
		if !seen[name] {
			t.Errorf("the route %s does not exist", name)
		}
	}
}

// Through the whole handler: a caller without a role is refused by all routes but GET /v1, and a caller without credentials
// by all.
func TestCallersWithoutARoleAreRefused(t *testing.T) {
	d := newVirtualWithUsers(t)
	h := d.server.Handler()
	for _, r := range d.routes() {
		path := strings.ReplaceAll(r.Pattern, "{id}", "x")
		if r.Access != server.Anyone {
			if w := servertest.Request(h, servertest.Peers()["without a role"], r.Method, path, nil); w.Code != http.StatusForbidden {
				t.Errorf("%s %s without a role is answered with %d: %s", r.Method, path, w.Code, w.Body)
			}
		}
		if w := servertest.Request(h, nil, r.Method, path, nil); w.Code != http.StatusForbidden {
			t.Errorf("%s %s without credentials is answered with %d: %s", r.Method, path, w.Code, w.Body)
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	h := newVirtualWithUsers(t).server.Handler()
	root := servertest.Peers()["root"]
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		status int
		kind   api.Kind
	}{
		{"with an Origin", func(q *http.Request) { q.Header.Set("Origin", "http://localhost") }, http.StatusForbidden, api.KindDenied},
		{"with a Referer", func(q *http.Request) { q.Header.Set("Referer", "http://localhost/") }, http.StatusForbidden, api.KindDenied},
		{"to another host", func(q *http.Request) { q.Host = "gpushare.example.org" }, http.StatusForbidden, api.KindDenied},
		{"to no route", func(q *http.Request) { q.URL.Path = "/v1/nothing" }, http.StatusNotFound, api.KindNotFound},
		{"with another method", func(q *http.Request) { q.Method = http.MethodPatch }, http.StatusMethodNotAllowed, api.KindInvalid},
		{"with a body above the limit", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPut, "/v1/spec"
			q.Body = io.NopCloser(strings.NewReader(strings.Repeat("#", server.MaxBody+1)))
		}, http.StatusBadRequest, api.KindInvalid},
		{"with an invalid spec", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPut, "/v1/spec"
			q.Body = io.NopCloser(strings.NewReader("version: v1\nnonsense: true\n"))
		}, http.StatusBadRequest, api.KindInvalid},
		{"with an invalid If-Match", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPut, "/v1/spec"
			q.Header.Set("If-Match", "yesterday")
			q.Body = io.NopCloser(strings.NewReader("version: v1\n"))
		}, http.StatusBadRequest, api.KindInvalid},
		{"for a lease without a command", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPost, "/v1/leases"
			q.Body = io.NopCloser(strings.NewReader("{}"))
		}, http.StatusBadRequest, api.KindInvalid},
		{"for a lease of a process that has exited", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPost, "/v1/leases"
			q.Body = io.NopCloser(strings.NewReader(`{"command":["true"]}`))
		}, http.StatusServiceUnavailable, api.KindUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := httptest.NewRequestWithContext(context.WithValue(t.Context(), server.PeerKey{}, root), http.MethodGet, "/v1/spec", nil)
			q.Host = "gpushare"
			c.change(q)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, q)
			if e := servertest.ErrorOf(t, w); w.Code != c.status || e.Kind != c.kind {
				t.Errorf("answered with %d, want %d: %+v", w.Code, c.status, e)
			}
		})
	}
}
