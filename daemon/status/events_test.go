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
		h := servertest.Handler(v.Reporter, server.Route{Method: http.MethodGet, Pattern: "/v1/events", Access: server.Reader, What: "follow events", Bound: server.Events, Handle: v.GetEvents},
			server.Route{Method: http.MethodGet, Pattern: "/v1/events/kept", Access: server.Reader, What: "list events", Bound: server.Lists, Handle: v.GetKeptEvents, Query: server.Query{"since": server.Text, "until": server.Text}})
		ctx, cancel := context.WithCancel(t.Context())
		streams := map[string]*stream{}
		for _, caller := range []string{"root", "observer", "member", "observer and member"} {
			s := &stream{header: http.Header{}}
			streams[caller] = s
			q := httptest.NewRequestWithContext(context.WithValue(ctx, server.PeerKey{}, servertest.Peers()[caller]), http.MethodGet, "/v1/events", nil)
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
		if r := servertest.Request(h, servertest.Peers()["root"], http.MethodGet, "/v1/events/kept?until=tomorrow", nil); r.Code != http.StatusBadRequest {
			t.Errorf("a time that is none: status %d", r.Code)
		}
		cancel()
		synctest.Wait()
		if n := len(v.Events.Subs); n != 0 {
			t.Errorf("%d closed streams still have subscriptions", n)
		}
	})
}
