package status

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/ledger"
)

// AuditDir is the directory of the audit, below that of the state.
func AuditDir(state string) string { return filepath.Join(state, "audit") }

// GetAudit streams the entries of the audit, the oldest first.
func (v *Viewer) GetAudit(c *server.Call) error {
	f := report.AuditFilter{User: c.Text("user"), Tenant: c.Text("tenant")}
	var err error
	if f.Since, f.Until, err = c.Period(v.Now()); err != nil {
		return err
	}
	c.W.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(c.W)
	err = v.ReadAudit(c.Ctx(), AuditDir(v.StateDir), f, func(l api.AuditLine) bool {
		server.StartPart(c.W)
		return out.Encode(l) == nil
	})
	if err != nil && c.Ctx().Err() == nil {
		v.Log.Warn("cannot read the audit", "error", err)
		panic(http.ErrAbortHandler) // The answer is not complete: the reader must see that.
	}
	return nil
}

// GetAuditVerification says whether every line of the audit follows the one before it, and whether it has all of them.
func (v *Viewer) GetAuditVerification(c *server.Call) error {
	var points []ledger.Point
	for s := range strings.SplitSeq(c.Text("anchor"), ",") {
		if s == "" {
			continue
		}
		m, err := ledger.ParsePoint(s)
		if err != nil {
			return &api.Error{
				Kind:    api.KindInvalid,
				Message: err.Error(),
				Hint:    "journalctl -u gpushared MESSAGE_ID=" + string(report.MessageAuditAnchor),
			}
		}
		points = append(points, m)
	}
	out, err := v.VerifyAudit(c.Ctx(), points)
	if err != nil {
		return err
	}
	return c.Reply(http.StatusOK, out)
}
