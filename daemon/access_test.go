package daemon

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mps"
)

// The people of these tests.
const (
	uidSelf     = 990
	gidAdmin    = 100
	gidObserver = 101
	gidVision   = 102
	gidOther    = 103
	uidAlice    = 1001
	uidStranger = 1009
)

func people() *roster {
	return &roster{self: uidSelf, adminGID: gidAdmin, observerGID: gidObserver, tenants: []tenantMembers{
		{name: "vision", uids: []int{uidAlice}, gids: []int{gidVision}}, {name: "speech", gids: []int{gidVision}}, {name: "other", gids: []int{gidOther}},
	}}
}

// everyone are peers, by what they are.
func everyone() map[string]*peer {
	return map[string]*peer{
		"root":                   {uid: 0, gid: 0},
		"the daemon's own user":  {uid: uidSelf, gid: 1},
		"group of admins":        {uid: 1002, gid: gidAdmin},
		"further group of admin": {uid: 1002, gid: 1, groups: []int{7, gidAdmin}},
		"observer":               {uid: 1003, gid: 1, groups: []int{gidObserver}},
		"member":                 {uid: uidAlice, gid: 1},
		"member by group":        {uid: 1004, gid: gidVision},
		"observer and member":    {uid: uidAlice, gid: gidObserver},
		"another's member":       {uid: 1005, gid: gidOther},
		"stranger":               {uid: uidStranger, gid: 1, groups: []int{1, 2, 3}},
		"root in a namespace":    {uid: 100000, gid: 100000}, // as the kernel tells him to those outside
	}
}

// roleOf is what everyone is, in the words of the API.
func roleOf() map[string]string {
	return map[string]string{
		"root": "admin", "the daemon's own user": "admin", "group of admins": "admin", "further group of admin": "admin",
		"observer": "observer", "member": "member", "member by group": "member", "observer and member": "member", "another's member": "member",
		"stranger": "nobody", "root in a namespace": "nobody",
	}
}

// bare is a daemon that holds nothing and knows some people.
func bare() *Daemon { return bareOn(&holder{}, Settings{Getent: "off"}, nil) }

// bareOn is a daemon on what holds processes, with no driver and nothing started.
func bareOn(h *holder, s Settings, st *store.Store) *Daemon {
	d := &Daemon{
		Reporter: NewReporter(slog.New(slog.DiscardHandler), time.Now), settings: s, state: NewState(st, false), tasks: &loop.Group{},
		tuning: new(atomic.Pointer[tuning]), observer: &observe.Observer{}, port: h.port, kick: func() {},
	}
	who := newRosters(s.Getent)
	who.p.Store(people())
	d.compose(h, &mps.Supervisor{}, who, loop.NewWake(), loop.NewWake())
	return d
}

// ask sends a request as a peer; nil is a connection whose peer is not known.
func ask(h http.Handler, p *peer, method, target string, body io.Reader) *httptest.ResponseRecorder {
	ctx := context.Background()
	if p != nil {
		ctx = context.WithValue(ctx, peerKey{}, p)
	}
	q := httptest.NewRequestWithContext(ctx, method, target, body)
	q.Host = "gpushare"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, q)
	return w
}

func refusalOf(t *testing.T, w *httptest.ResponseRecorder) *api.Error {
	t.Helper()
	var envelope struct {
		Error *api.Error `json:"error"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &envelope); err != nil || envelope.Error == nil {
		t.Fatalf("%d is no refusal: %s", w.Code, w.Body)
	}
	return envelope.Error
}

// mayUse is the whole of the API: who may, for each route. A route that is missing here fails.
func mayUse() map[string][]string {
	all := []string{"admin", "observer", "member", "nobody"}
	known := []string{"admin", "observer", "member"}
	seers := []string{"admin", "observer"}
	members := []string{"admin", "member"}
	admins := []string{"admin"}
	return map[string][]string{
		"GET /v1":                      all,
		"GET /v1/status":               known,
		"GET /v1/events":               known,
		"GET /v1/spec":                 seers,
		"GET /v1/plan":                 seers,
		"GET /v1/operations/{id}":      seers,
		"GET /v1/doctor":               seers,
		"GET /v1/mig":                  seers,
		"POST /v1/mig/adopt":           admins,
		"POST /v1/mig/remove":          admins,
		"GET /v1/counters":             seers,
		"GET /v1/leases":               known,
		"GET /v1/leases/{id}/logs":     members,
		"POST /v1/leases":              members,
		"POST /v1/leases/attach":       members,
		"POST /v1/leases/{id}/release": members,
		"DELETE /v1/leases/{id}":       members,
		"GET /v1/explain":              known,
		"GET /v1/env":                  members,
		"PUT /v1/spec":                 admins,
		"POST /v1/gpus/{id}/retry":     admins,
		"POST /v1/reload":              admins,
		"POST /v1/release":             admins,
	}
}

func TestWhoMayWhat(t *testing.T) {
	d, want, seen := bare(), mayUse(), map[string]bool{}
	for _, r := range d.routes() {
		name := r.method + " " + r.pattern
		seen[name] = true
		t.Run(name, func(t *testing.T) {
			allowed, ok := want[name]
			if !ok {
				t.Fatal("nobody wrote down who may use this route")
			}
			for who, p := range everyone() {
				reached := false
				probe := r
				probe.handle = func(c *call) error { reached = true; return c.reply(http.StatusOK, nil) }
				w := ask(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { d.server.serve(w, q, &probe) }), p, r.method, "/v1", nil)
				role := roleOf()[who]
				// An observer who is a member too may do what either may.
				may := slices.Contains(allowed, role) || who == "observer and member" && slices.Contains(allowed, "observer")
				if reached != may {
					t.Errorf("%s (%s): let in %v, want %v", who, role, reached, may)
				}
				if may {
					continue
				}
				e := refusalOf(t, w)
				if w.Code != http.StatusForbidden || e.Kind != api.KindDenied || e.Hint == "" || !strings.Contains(e.Message, "may not "+r.what) {
					t.Errorf("%s is refused with %d: %+v", who, w.Code, e)
				}
			}
		})
	}
	for name := range want {
		if !seen[name] {
			t.Errorf("%s is gone", name)
		}
	}
}

// Through the whole handler: a stranger is refused everywhere but at GET /v1, and so is whoever cannot be told.
func TestStrangersAreRefusedEverywhere(t *testing.T) {
	d := bare()
	h := d.server.handler()
	for _, r := range d.routes() {
		path := strings.ReplaceAll(r.pattern, "{id}", "x")
		if r.access != anyone {
			if w := ask(h, everyone()["stranger"], r.method, path, nil); w.Code != http.StatusForbidden {
				t.Errorf("a stranger's %s %s is answered with %d: %s", r.method, path, w.Code, w.Body)
			}
		}
		if w := ask(h, nil, r.method, path, nil); w.Code != http.StatusForbidden {
			t.Errorf("%s %s of nobody knows whom is answered with %d: %s", r.method, path, w.Code, w.Body)
		}
	}
}

func TestRoles(t *testing.T) {
	var r rosters
	r.p.Store(people())
	for who, p := range everyone() {
		if got := r.caller(p).role(); got != roleOf()[who] {
			t.Errorf("%s is %s, want %s", who, got, roleOf()[who])
		}
	}
	if c := r.caller(everyone()["member by group"]); !slices.Equal(c.tenants, []string{"vision", "speech"}) {
		t.Errorf("the member by group is a member of %v", c.tenants)
	}
	// Groups that this host does not have give nobody anything.
	r.p.Store(&roster{self: uidSelf, adminGID: -1, observerGID: -1})
	if c := r.caller(&peer{uid: 5, gid: -1, groups: []int{-1}}); c.role() != "nobody" {
		t.Errorf("a group that does not exist makes somebody %s", c.role())
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	h := bare().server.handler()
	root := everyone()["root"]
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		status int
		kind   api.Kind
	}{
		{"from a page", func(q *http.Request) { q.Header.Set("Origin", "http://localhost") }, http.StatusForbidden, api.KindDenied},
		{"from a link", func(q *http.Request) { q.Header.Set("Referer", "http://localhost/") }, http.StatusForbidden, api.KindDenied},
		{"to another host", func(q *http.Request) { q.Host = "gpushare.example.org" }, http.StatusForbidden, api.KindDenied},
		{"to no route", func(q *http.Request) { q.URL.Path = "/v1/nothing" }, http.StatusNotFound, api.KindNotFound},
		{"with another method", func(q *http.Request) { q.Method = http.MethodPatch }, http.StatusNotFound, api.KindNotFound},
		{"with too much", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPut, "/v1/spec"
			q.Body = io.NopCloser(strings.NewReader(strings.Repeat("#", maxBody+1)))
		}, http.StatusBadRequest, api.KindInvalid},
		{"with no spec", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPut, "/v1/spec"
			q.Body = io.NopCloser(strings.NewReader("version: v1\nnonsense: true\n"))
		}, http.StatusBadRequest, api.KindInvalid},
		{"with a strange If-Match", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPut, "/v1/spec"
			q.Header.Set("If-Match", "yesterday")
			q.Body = io.NopCloser(strings.NewReader("version: v1\n"))
		}, http.StatusBadRequest, api.KindInvalid},
		{"for a lease of nothing", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPost, "/v1/leases"
			q.Body = io.NopCloser(strings.NewReader("{}"))
		}, http.StatusBadRequest, api.KindInvalid},
		{"for a lease of a process that is gone", func(q *http.Request) {
			q.Method, q.URL.Path = http.MethodPost, "/v1/leases"
			q.Body = io.NopCloser(strings.NewReader(`{"command":["true"]}`))
		}, http.StatusServiceUnavailable, api.KindUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := httptest.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, root), http.MethodGet, "/v1/spec", nil)
			q.Host = "gpushare"
			c.change(q)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, q)
			if e := refusalOf(t, w); w.Code != c.status || e.Kind != c.kind {
				t.Errorf("answered with %d, want %d: %+v", w.Code, c.status, e)
			}
		})
	}
}

// Connections past a user's cap are refused, whoever closes one gives one place back, and root is never refused.
func TestConnectionCaps(t *testing.T) {
	l := newCappedListener(nil, nil)
	for i := range maxPerUID {
		if !l.take(1001, true) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if l.take(1001, true) {
		t.Error("there is no cap")
	}
	if !l.take(1010, true) {
		t.Error("one user's connections keep another out")
	}
	l.give(1001, true)
	if !l.take(1001, true) {
		t.Error("a place that was given back is not given again")
	}
	uid := 2000
	for ; l.take(uid, true); uid++ {
		if l.total > maxConns {
			t.Fatal("there is no cap on all of them")
		}
	}
	if l.total != maxConns {
		t.Errorf("%d connections at most, want %d", l.total, maxConns)
	}
	if !l.take(0, true) {
		t.Error("root is kept out")
	}
	if !l.take(1009, false) {
		t.Error("those who are known keep strangers out")
	}
	l.give(0, true)
	l.give(1009, false)
	if len(l.byUID) != uid-2000+2 || l.strangers != 0 || l.total != maxConns {
		t.Errorf("%d users, %d strangers and %d others are left", len(l.byUID), l.strangers, l.total)
	}
}

// One person has thousands of uids in a user namespace: together they are no more than strangers.
func TestStrangersShareOneCap(t *testing.T) {
	l := newCappedListener(nil, nil)
	for i := range maxPerStranger {
		if !l.take(1009, false) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if l.take(1009, false) {
		t.Error("a stranger has no cap")
	}
	for uid := range 10 * maxStrangers {
		l.take(100000+uid, false)
	}
	if l.strangers != maxStrangers {
		t.Errorf("%d connections of strangers, want at most %d", l.strangers, maxStrangers)
	}
	if !l.take(1001, true) {
		t.Error("strangers keep a member out")
	}
}
