package daemon

import (
	"path/filepath"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/status"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/ledger"
	"github.com/gpushare/gpushare/internal/store"
)

// openAudit opens the audit, and compares it with what is known of it outside of its files.
func (d *Daemon) openAudit() (err error) {
	o := ledger.Options{
		Files:    16,
		Anchor:   filepath.Join(d.settings.StateDir, ledger.AuditAnchor),
		OnLoss:   d.AuditLost,
		OnDamage: d.AuditDamaged,
		Log:      d.Log,
	}
	if m := d.state.Stored().Audit; m != nil {
		o.Known = ledger.Point{Number: m.Number, Hash: m.SHA256, At: m.At}
	}
	if o.Boot, err = procfs.BootID(d.settings.HostRoot); err != nil {
		d.Log.Warn("the audit cannot tell whether the node was started again", "error", err)
	}
	d.SavePoint = func(m ledger.Point) error {
		if was := d.state.Stored().Audit; was != nil && was.Number == m.Number && was.SHA256 == m.Hash {
			return nil // An idle daemon writes nothing.
		}
		return d.state.Store.Update(func(s *store.State) error {
			s.Audit = &store.AuditPoint{Number: m.Number, SHA256: m.Hash, At: m.At}
			return nil
		})
	}
	d.Audits, err = ledger.Open(status.AuditDir(d.settings.StateDir), report.AuditName, o)
	return err
}
