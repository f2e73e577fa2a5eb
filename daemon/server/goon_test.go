package server_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/internal/loop"
)

// A request that began to change something does not depend on its caller any more: neither on the connection nor on the role. It ends
// with the daemon.
func TestWhatARequestBeganDoesNotDependOnItsCaller(t *testing.T) {
	for _, c := range []struct {
		name  string
		end   func(s *started) // before GoOn
		later func(s *started) // after it
		says  string
	}{
		{"the caller leaves before", leaves, nothing, "the request was canceled"},
		{"the caller leaves after", nothing, leaves, "a test"},
		{"the role is lost before", loses, nothing, "may not change the node any more"},
		{"the role is lost after", nothing, loses, "a test"},
		{"the daemon ends after", nothing, ends, "the daemon ends"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
			daemon, stop := context.WithCancel(t.Context())
			defer stop()
			ctx, leave := context.WithCancel(context.WithValue(t.Context(), server.PeerKey{}, servertest.Peers()["group of admins"]))
			defer leave()
			tasks := &loop.Group{}
			tasks.Begin(daemon)
			s := &started{leave: leave, stop: stop, ids: server.NewIdentities(r, tasks, servertest.UidSelf, "off")}
			s.ids.Table.Store(servertest.Identities())
			handle := func(call *server.Call) error {
				if c.end(s); strings.HasSuffix(c.name, "before") {
					<-call.Ctx().Done()
				}
				going, err := server.GoOn(call.Ctx())
				if err != nil {
					return err
				}
				c.later(s)
				if strings.HasPrefix(c.name, "the daemon") {
					<-going.Done()
					return errors.New("the daemon ends")
				}
				<-call.Ctx().Done()
				if again, err := server.GoOn(going); going.Err() != nil || err != nil || again != going {
					t.Errorf("what was begun ends: %v, %v", going.Err(), err)
				}
				return &api.Error{Kind: api.KindConflict, Message: "a test"}
			}
			h := (&server.Server{Reporter: r, Tasks: tasks, Identities: s.ids, Routes: []server.Route{{
				Method: http.MethodPost, Pattern: "/x", What: "change the node", Access: server.Admin, Bound: server.Changes,
				More: server.More{Audit: server.GoesOn("x")}, Handle: handle,
			}}}).Handler()
			q := httptest.NewRequestWithContext(ctx, http.MethodPost, "/x", http.NoBody)
			q.Host = "gpushare"
			w := httptest.NewRecorder()
			h.ServeHTTP(w, q)
			if e := servertest.ErrorOf(t, w); !strings.Contains(e.Message, c.says) {
				t.Errorf("it is answered with %+v, want %q", e, c.says)
			}
		})
	}
}

// started is a request.
type started struct {
	leave, stop context.CancelFunc
	ids         *server.Identities
}

func leaves(s *started) { s.leave() }
func ends(s *started)   { s.stop() }

// loses takes the role from the caller.
func loses(s *started) {
	s.ids.Table.Store(&server.IdentityTable{Self: servertest.UidSelf})
	s.ids.Announce()
}

func nothing(*started) {}
