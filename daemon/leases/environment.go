package leases

import (
	"fmt"
	"net/http"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// GetEnv answers with the environment of the lease that the caller runs in, or with what podman needs for a container in it.
func (ls *Leases) GetEnv(c *server.Call) error {
	podman := c.Flag("podman")
	p := c.Caller.Process
	id, ok := ls.Attribution.LeaseOf(p.PID)
	// The pid was read when the caller connected. If another process has it now, its lease is not the caller's.
	if !ok || !procfs.Alive(p.PID, p.Start) {
		hint := "start one with 'gpushare run -- $SHELL'"
		if podman {
			hint = "start the container in one: " + api.RootlessContainer("", "")
		}
		return &api.Error{Kind: api.KindNotFound, Message: "this process runs in no lease", Hint: hint}
	}
	l, ok := ls.Table.Get(id)
	if !ok || !(c.Caller.Admin || c.Caller.IsMember(l.Terms.Tenant) || c.Caller.UID == l.UID) {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: "the lease of this process has ended, or belongs to a tenant that you are not a member of",
		}
	}
	env, unset, err := ls.Policy.Environment(c.Ctx(), &l)
	if err != nil {
		return err
	}
	out := api.Environment{Lease: id, Environment: env, Unset: unset}
	if podman {
		if out.Podman, err = ls.Policy.PodmanOptions(c.Ctx(), &l); err != nil {
			return fmt.Errorf("cannot describe a container of lease %s: %w", id, err)
		}
	}
	return c.Reply(http.StatusOK, out)
}
