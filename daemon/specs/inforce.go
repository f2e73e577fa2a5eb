package specs

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
)

// Load loads the accepted spec at start. Its selectors were resolved when it was accepted.
func (ss *Specs) Load() {
	acc := ss.State.Stored().Accepted
	if acc == nil {
		ss.Identities.QueryNames(nil, server.NameStartWait, true)
		return
	}
	unmanaged := state.UnmanagedOf(acc)
	if acc.Unmanaged == store.UnmanagedAll {
		ss.Identities.QueryNames(nil, server.NameStartWait, true)
		ss.Install(&state.Desired{Generation: acc.Generation, Unmanaged: unmanaged})
		return
	}
	s, err := spec.DecodeAccepted("state.json", []byte(acc.YAML))
	if err != nil {
		ss.Conditions.Set(
			"state", "spec", "the accepted spec cannot be read by this version: "+err.Error(),
			"nothing is changed; apply a spec that this version reads",
		)
		ss.Log.Error("cannot read the accepted spec", "error", err)
		ss.Identities.QueryNames(nil, server.NameStartWait, true)
		return
	}
	byDefault := overuseByDefault(s)
	s.Normalize()
	ss.Identities.QueryNames(s, server.NameStartWait, true)
	want := state.DesiredOf(s, spec.Resolved(acc.Resolved), acc.Generation)
	want.Unmanaged = unmanaged
	ss.Install(want)
	if was := cmp.Or(acc.Overuse, api.EarlierDefaultOveruse); was != api.DefaultOveruse && want.Enforcing() && len(byDefault) > 0 {
		ss.reportDefault(was, byDefault)
	}
}

// Install puts a spec in force in memory.
func (ss *Specs) Install(want *state.Desired) {
	want.Renames = ss.State.Stored().Renames
	ss.Identities.Replace(want.Spec, func(store func()) {
		accept := func() { ss.State.SetDesired(want); store() }
		if ss.Renamed == nil {
			accept()
			return
		}
		ss.Renamed(want.Renames, want, accept)
	})
	if acc := ss.State.Stored().Accepted; acc == nil || acc.Overuse == api.DefaultOveruse {
		ss.Conditions.Clear(conditionDefault, "overuse")
	}
}

// GetSpec answers the spec in force with its generation as base: an edited copy is refused when another spec was applied since.
func (ss *Specs) GetSpec(c *server.Call) error {
	acc := ss.State.Stored().Accepted
	if acc != nil && acc.Unmanaged == store.UnmanagedAll {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("no spec is in force: %s unmanaged the node at %s", acc.By, acc.At.Format(time.RFC3339)),
			Hint:    "apply one with 'gpushare apply -f node.yaml'",
		}
	}
	if acc == nil {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: "no spec was applied yet",
			Hint:    "write one and apply it with 'gpushare apply -f node.yaml'; examples are in /usr/share/gpushare/examples",
		}
	}
	c.W.Header().Set("ETag", strconv.Quote(strconv.FormatUint(acc.Generation, 10)))
	head, rest, _ := strings.Cut(acc.YAML, "\n")
	out := api.SpecDocument{
		Generation: acc.Generation,
		By:         acc.By,
		At:         acc.At,
		YAML:       fmt.Sprintf("%s\nbase: %d\n%s", head, acc.Generation, rest),
	}
	if s, err := spec.DecodeAccepted("state.json", []byte(acc.YAML)); err == nil { // An error is a condition since the start.
		out.Spec = s
	}
	return c.Reply(http.StatusOK, out)
}

// Diff is the text of the spec in force, and that of one to come.
func (ss *Specs) Diff(yaml string) *api.Diff {
	out := &api.Diff{After: yaml}
	if acc := ss.State.Stored().Accepted; acc != nil {
		out.Before = acc.YAML
	}
	return out
}
