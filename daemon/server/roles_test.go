package server_test

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/internal/loop"
)

func TestRoles(t *testing.T) {
	r := server.NewIdentities(report.NewReporter(slog.New(slog.DiscardHandler), time.Now), &loop.Group{}, servertest.UidSelf, "off")
	r.Table.Store(servertest.Identities())
	for name, p := range servertest.Peers() {
		if got := r.Caller(p).Role(); got != servertest.Roles()[name] {
			t.Errorf("%s is %s, want %s", name, got, servertest.Roles()[name])
		}
	}
	if c := r.Caller(servertest.Peers()["member by group"]); !slices.Equal(c.Tenants, []string{"vision", "speech"}) {
		t.Errorf("the member by group is a member of %v", c.Tenants)
	}
	// Groups that this host does not have give no role.
	r.Table.Store(&server.IdentityTable{Self: servertest.UidSelf, AdminGID: -1, ObserverGID: -1})
	if c := r.Caller(&server.Peer{UID: 5, GID: -1, Groups: []int{-1}}); c.Role() != "none" {
		t.Errorf("a group that does not exist gives the role %s", c.Role())
	}
}
