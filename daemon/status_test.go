package daemon

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// A member may not stop what is not his, and is not told whether another tenant's exists.
func TestWhoMayStopALease(t *testing.T) {
	d := bare()
	d.leases.Table = leasetest.TableWith(t, "vision", "part", servertest.UidAlice)
	id := d.leases.Table.Live()[0].ID
	for _, c := range []struct {
		name   string
		p      *server.Peer
		id     string
		status int
	}{
		{"another tenant's member", &server.Peer{UID: 1005, GID: servertest.GidOther}, id, http.StatusNotFound},
		{"of nothing", &server.Peer{UID: servertest.UidAlice}, "no-such-lease", http.StatusNotFound},
		{"a colleague", &server.Peer{UID: 1004, GID: servertest.GidVision}, id, http.StatusForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := servertest.Ask(d.server.Handler(), c.p, http.MethodDelete, "/v1/leases/"+c.id, nil)
			if e := servertest.RefusalOf(t, w); w.Code != c.status || strings.Contains(e.Message, "command") {
				t.Errorf("answered with %d, want %d: %+v", w.Code, c.status, e)
			}
		})
	}
	if len(d.leases.Table.Live()) != 1 {
		t.Error("the lease is gone")
	}
}
