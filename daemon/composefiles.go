package daemon

import (
	"context"
	"net"
	"path/filepath"

	"github.com/gpushare/gpushare/daemon/lostfiles"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/ledger"
)

// composeFiles makes what compares the files of the daemon with their names. The directories come first: the others are written in them.
func (d *Daemon) composeFiles() {
	at := func(revalidate func() ([]string, error)) func(context.Context) ([]string, error) {
		return func(context.Context) ([]string, error) { return revalidate() }
	}
	d.files = &lostfiles.Files{Reporter: d.Reporter, Parts: []lostfiles.Part{
		{
			Name:        "state",
			Revalidate:  at(d.state.Store.Revalidate),
			NotRestored: "the record of what GPUs had before, if the whole directory was removed, and the sockets of MPS with the run directory",
			Hint: "restore " + filepath.Join(d.settings.StateDir, "power") + " and " + filepath.Join(d.settings.StateDir, "mps") +
				" from a backup; 'gpushare mps list' shows whether MPS answers, and 'systemctl restart gpushare-thaw gpushared' makes time shares enforced again",
		},
		{
			Name:        "audit",
			Revalidate:  d.RevalidateAudit,
			NotRestored: "the lines of before, which the journal has",
			Hint: "'gpushare audit --verify' says which lines are missing; restore " + filepath.Join(
				d.settings.StateDir,
				"audit",
			) + " and " +
				ledger.AuditAnchor + " from a backup",
		},
		{
			Name:        "account",
			Revalidate:  at(d.account.Revalidate),
			NotRestored: "what was measured before",
			Hint:        "restore " + filepath.Join(d.settings.StateDir, "ledger") + " from a backup",
		},
		{Name: "leases", Revalidate: d.leases.Revalidate, Hint: "'gpushare lease list' shows the leases"},
		{Name: "frozen-tenants", Revalidate: at(d.enforcer.Tenants.Revalidate), Hint: "'gpushare tenant list' shows which are frozen"},
		{
			Name:       "login-limits",
			Revalidate: at(d.adopter.Revalidate),
			Hint:       "'gpushare explain TENANT' shows the limits of logins",
		},
		{Name: "socket", Revalidate: d.revalidateSocket, Hint: "'gpushare status' uses it"},
	}}
}

// serveAgain begins to compare the socket with its name.
func (d *Daemon) serveAgain(serving *server.Serving) {
	d.socket = &server.Socket{Path: d.settings.Socket, Serve: func(l net.Listener) {
		d.tasks.Go(func() {
			capped, err := server.NewCappedListener(l, d.identities.HasRole)
			if err == nil {
				err = serving.ServeAlso(capped)
			}
			d.Log.Info("the socket is not served any more", "reason", err)
		})
	}}
	d.files.Check(context.Background())
}

func (d *Daemon) revalidateSocket(context.Context) (lost []string, err error) {
	if d.socket == nil {
		return nil, nil
	}
	return d.socket.Revalidate()
}
