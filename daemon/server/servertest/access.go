package servertest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/loop"
)

// The users of the tests.
const (
	UidSelf        = 990
	gidAdmin       = 100
	gidObserver    = 101
	GidVision      = 102
	GidOther       = 103
	UidAlice       = 1001
	uidWithoutRole = 1009
	uidEngine      = 1010
)

// Identities returns the users of the tests.
func Identities() *server.IdentityTable {
	return &server.IdentityTable{Self: UidSelf, AdminGID: gidAdmin, ObserverGID: gidObserver, Tenants: []server.TenantMembers{
		{
			Name: "vision",
			UIDs: []int{UidAlice},
			GIDs: []int{GidVision},
		},
		{Name: "speech", GIDs: []int{GidVision}},
		{Name: "other", GIDs: []int{GidOther}},
	}, Engine: server.TenantMembers{UIDs: []int{uidEngine, UidAlice}}}
}

// Peers returns peers by name.
func Peers() map[string]*server.Peer {
	return map[string]*server.Peer{
		"root":                   {UID: 0, GID: 0},
		"the daemon's own user":  {UID: UidSelf, GID: 1},
		"group of admins":        {UID: 1002, GID: gidAdmin},
		"further group of admin": {UID: 1002, GID: 1, Groups: []int{7, gidAdmin}},
		"observer":               {UID: 1003, GID: 1, Groups: []int{gidObserver}},
		"member":                 {UID: UidAlice, GID: 1},
		"member by group":        {UID: 1004, GID: GidVision},
		"observer and member":    {UID: UidAlice, GID: gidObserver},
		"another's member":       {UID: 1005, GID: GidOther},
		"engine":                 {UID: uidEngine, GID: 1},
		"without a role":         {UID: uidWithoutRole, GID: 1, Groups: []int{1, 2, 3}},
		"root in a namespace":    {UID: 100000, GID: 100000}, // as the kernel reports it outside of the namespace
	}
}

// Files writes a passwd and a group file that have the peers, with the groups of their processes.
func Files(t testing.TB) (passwd, group string) {
	t.Helper()
	users, members := map[int]int{}, map[int][]string{}
	for _, p := range Peers() {
		if p.UID == 0 {
			continue
		}
		users[p.UID] = p.GID // any of its peers'
		for _, gid := range append([]int{p.GID}, p.Groups...) {
			members[gid] = append(members[gid], userName(p.UID))
		}
	}
	var u, g strings.Builder
	for uid, gid := range users {
		fmt.Fprintf(&u, "%s:x:%d:%d::/:/bin/sh\n", userName(uid), uid, gid)
	}
	for gid, names := range members {
		fmt.Fprintf(&g, "group%d:x:%d:%s\n", gid, gid, strings.Join(names, ","))
	}
	dir := t.TempDir()
	passwd, group = filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	for file, text := range map[string]string{passwd: u.String(), group: g.String()} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return passwd, group
}

func userName(uid int) string { return fmt.Sprintf("user%d", uid) }

// Roles returns the role of each peer, in the words of the API.
func Roles() map[string]string {
	return map[string]string{
		"root":                   "admin",
		"the daemon's own user":  "admin",
		"group of admins":        "admin",
		"further group of admin": "admin",
		"observer":               "observer",
		"member":                 "member",
		"member by group":        "member",
		"observer and member":    "member",
		"another's member":       "member",
		"engine":                 "engine",
		"without a role":         "none",
		"root in a namespace":    "none",
	}
}

// Request sends a request as a peer; nil: the peer of the connection is not known.
func Request(h http.Handler, p *server.Peer, method, target string, body io.Reader) *httptest.ResponseRecorder {
	ctx := context.Background()
	if p != nil {
		ctx = context.WithValue(ctx, server.PeerKey{}, p)
	}
	q := httptest.NewRequestWithContext(ctx, method, target, body)
	q.Host = "gpushare"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, q)
	return w
}

// Handler serves the routes to the users of the tests.
func Handler(r *report.Reporter, routes ...server.Route) http.Handler {
	ids := server.NewIdentities(r, &loop.Group{}, UidSelf, "off")
	ids.Table.Store(Identities())
	return (&server.Server{Reporter: r, Tasks: &loop.Group{}, Identities: ids, Routes: routes}).Handler()
}

// ErrorOf returns the error of an answer.
func ErrorOf(t *testing.T, w *httptest.ResponseRecorder) *api.Error {
	t.Helper()
	var envelope struct {
		Error *api.Error `json:"error"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &envelope); err != nil || envelope.Error == nil {
		t.Fatalf("%d is not an error: %s", w.Code, w.Body)
	}
	return envelope.Error
}
