package status

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/internal/loop"
)

// stream is a response that the test reads while it is written.
type stream struct {
	header http.Header
	mu     sync.Mutex // guards b
	b      bytes.Buffer
}

func (s *stream) Header() http.Header { return s.header }

func (s *stream) WriteHeader(int) {}

func (s *stream) Flush() {}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestEventsAreRestrictedToTheCallersTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &Viewer{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now)}
		h := servertest.Handler(
			v.Reporter,
			server.Route{
				Method:  http.MethodGet,
				Pattern: "/v1/events",
				Access:  server.Reader,
				What:    "follow events",
				Bound:   server.Events,
				Handle:  v.GetEvents,
			},
			server.Route{
				Method:  http.MethodGet,
				Pattern: "/v1/events/kept",
				Access:  server.Reader,
				What:    "list events",
				Bound:   server.Lists,
				Handle:  v.GetKeptEvents,
				More:    server.More{Query: server.Query{"since": server.Text, "until": server.Text}},
			},
		)
		ctx, cancel := context.WithCancel(t.Context())
		streams := map[string]*stream{}
		for _, caller := range []string{"root", "observer", "member", "observer and member"} {
			s := &stream{header: http.Header{}}
			streams[caller] = s
			q := httptest.NewRequestWithContext(
				context.WithValue(ctx, server.PeerKey{}, servertest.Peers()[caller]), http.MethodGet, "/v1/events", nil,
			)
			q.Host = "gpushare"
			go h.ServeHTTP(s, q)
		}
		synctest.Wait()
		for _, e := range []api.Event{
			{Kind: "of-vision", Tenant: "vision"}, {Kind: "of-speech", Tenant: "speech"}, {Kind: "of-the-node", Message: "GPU 3 is held: pid 7 (secret)"},
		} {
			v.Events.Publish(e)
		}
		synctest.Wait()
		for caller, want := range map[string]string{
			"root": "vision speech the-node", "observer": "vision speech the-node", "member": "vision", "observer and member": "vision speech the-node",
		} {
			for _, kind := range []string{"vision", "speech", "the-node"} {
				if got := strings.Contains(streams[caller].String(), `"of-`+kind+`"`); got != strings.Contains(want, kind) {
					t.Errorf("%s gets events of %s: %v", caller, kind, got)
				}
			}
		}
		// The same rule holds for those that are kept.
		for caller, want := range map[string]int{"root": 3, "observer": 3, "member": 1, "observer and member": 3} {
			r := servertest.Request(h, servertest.Peers()[caller], http.MethodGet, "/v1/events/kept?since=1h", nil)
			if n := strings.Count(r.Body.String(), "\n"); r.Code != http.StatusOK || n != want {
				t.Errorf("%s: status %d, %d events of the last hour, want %d", caller, r.Code, n, want)
			}
		}
		if r := servertest.Request(
			h, servertest.Peers()["root"], http.MethodGet, "/v1/events/kept?until=tomorrow", nil,
		); r.Code != http.StatusBadRequest {
			t.Errorf("a time that is none: status %d", r.Code)
		}
		cancel()
		synctest.Wait()
		if n := len(v.Events.Subs); n != 0 {
			t.Errorf("%d closed streams still have subscriptions", n)
		}
	})
}

// What a reader may see is compared when an event is sent: one tenant less is said, and without a role the stream ends.
func TestEventsEndWithTheRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &Viewer{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now)}
		ids := server.NewIdentities(v.Reporter, &loop.Group{}, servertest.UidSelf, "off")
		ids.Table.Store(servertest.Identities())
		h := (&server.Server{Reporter: v.Reporter, Tasks: &loop.Group{}, Identities: ids, Routes: []server.Route{
			{Method: http.MethodGet, Pattern: "/v1/events", Access: server.Reader, What: "follow events", Bound: server.Events, Handle: v.GetEvents},
		}}).Handler()
		s := &stream{header: http.Header{}}
		// A member of vision by name and group, and of speech by group.
		peer := &server.Peer{UID: servertest.UidAlice, GID: servertest.GidVision}
		q := httptest.NewRequestWithContext(context.WithValue(t.Context(), server.PeerKey{}, peer), http.MethodGet, "/v1/events", nil)
		q.Host = "gpushare"
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.ServeHTTP(s, q)
		}()
		synctest.Wait()
		members := func(tenants ...server.TenantMembers) {
			ids.Table.Store(&server.IdentityTable{Self: servertest.UidSelf, AdminGID: -1, ObserverGID: -1, Tenants: tenants})
			ids.Announce()
			synctest.Wait()
		}
		publish := func(text string) {
			for _, tenant := range []string{"vision", "speech"} {
				v.Events.Publish(api.Event{Kind: text + "-of-" + tenant, Tenant: tenant})
			}
			synctest.Wait()
		}
		publish("first")
		members(server.TenantMembers{Name: "vision", UIDs: []int{servertest.UidAlice}})
		publish("second")
		if got := s.String(); !strings.Contains(got, "first-of-speech") || strings.Contains(got, "second-of-speech") ||
			!strings.Contains(got, "second-of-vision") ||
			strings.Count(got, "sees no events of tenant speech any more") != 1 {
			t.Errorf("after the end of one membership:\n%s", got)
		}
		// An event that is published before the reader notices is not sent either.
		ids.Table.Store(&server.IdentityTable{Self: servertest.UidSelf, AdminGID: -1, ObserverGID: -1})
		publish("third")
		members()
		publish("fourth")
		select {
		case <-ended:
		default:
			t.Error("the stream does not end")
		}
		lines := strings.Split(strings.TrimSpace(s.String()), "\n")
		if last := lines[len(lines)-1]; !strings.Contains(last, `"role.ended"`) ||
			!strings.Contains(last, "may not follow events any more") {
			t.Errorf("the last line is %s", last)
		}
		if strings.Contains(s.String(), "third") || strings.Contains(s.String(), "fourth") {
			t.Errorf("events come without a role:\n%s", s.String())
		}
	})
}
