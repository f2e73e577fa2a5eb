package specs

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
)

// GetHistory lists the revisions, the oldest first, with what each changed.
func (ss *Specs) GetHistory(c *server.Call) error {
	stored := ss.State.Stored()
	out := api.SpecHistory{SchemaVersion: 1, Revisions: []api.SpecRevision{}}
	for i := range stored.Revisions {
		r := &stored.Revisions[i]
		w := api.SpecRevision{
			Generation: r.Generation, By: r.By, At: r.At, Unmanaged: r.Unmanaged,
			InForce: stored.Accepted != nil && stored.Accepted.Generation == r.Generation,
		}
		switch {
		case r.Unmanaged == store.UnmanagedAll: // It has no spec.
		case i > 0:
			w.Changes = spec.Changes(stored.Revisions[i-1].YAML, r.YAML)
		case r.Generation == 1:
			w.Changes = spec.Changes("", r.YAML)
		}
		out.Revisions = append(out.Revisions, w)
	}
	return c.Reply(http.StatusOK, out)
}

// GetRevision answers one spec as it was accepted.
func (ss *Specs) GetRevision(c *server.Call) error {
	name := c.R.PathValue("generation")
	all := ss.State.Stored().Revisions
	i := slices.IndexFunc(all, func(r store.Revision) bool { return strconv.FormatUint(r.Generation, 10) == name })
	if i < 0 {
		e := &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("generation %q is not kept", name), Hint: "no spec was applied yet"}
		if len(all) > 0 {
			e.Hint = fmt.Sprintf("'gpushare history' lists those that are: %d to %d", all[0].Generation, all[len(all)-1].Generation)
		}
		return e
	}
	r := &all[i]
	if r.Unmanaged == store.UnmanagedAll {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("generation %d has no spec: %s unmanaged the node at %s", r.Generation, r.By, r.At.Format(time.RFC3339)),
			Hint:    "'gpushare unmanage --all' does that again",
		}
	}
	return c.Reply(http.StatusOK, api.SpecDocument{Generation: r.Generation, By: r.By, At: r.At, YAML: r.YAML})
}
