package specs

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/text"
)

// Stale refuses a spec that was edited from another generation than the one in force, and says what of others it would
// change back. acc is the spec in force, nil if there is none; the revisions are those that were accepted before.
func Stale(s *api.Spec, base uint64, acc *store.Accepted, revisions []store.Revision) error {
	e := &api.Error{
		Kind:    api.KindConflict,
		Message: fmt.Sprintf("cannot apply the spec: it was edited from generation %d, and this node has none yet", base),
		Hint:    "apply it without base: and --if-generation",
	}
	if acc == nil {
		return e
	}
	e.Stale = &api.StaleSpec{Base: base, Generation: acc.Generation, By: acc.By, At: acc.At}
	e.Message = fmt.Sprintf(
		"cannot apply the spec: it was edited from generation %d, and generation %d is in force, by %s at %s", base, acc.Generation,
		acc.By, acc.At.UTC().Format(time.RFC3339),
	)
	e.Hint = "'gpushare get' prints the spec in force: make your change there and apply that; without base: and --if-generation the spec is applied as it is"
	if acc.Unmanaged != "" {
		return e
	}
	without := *s
	without.Base = nil
	next, err := spec.Encode(&without)
	if err != nil {
		return err
	}
	was := "" // All that is in force counts as new if the text is not kept.
	if i := slices.IndexFunc(revisions, func(r store.Revision) bool { return r.Generation == base }); i >= 0 {
		was = revisions[i].YAML
	} else {
		e.Stale.Unknown = true
	}
	lost := spec.Lost(was, acc.YAML, string(next))
	switch n := len(lost); {
	case n == 0:
		e.Message += "; the spec has every line of it"
	case e.Stale.Unknown:
		e.Message += fmt.Sprintf(
			"; generation %d is not kept any longer, and the spec lacks %s of the one in force", base, text.Count(n, "line"),
		)
	default:
		e.Message += fmt.Sprintf("; %s of what others changed since would be lost", text.Count(n, "line"))
	}
	e.Stale.Lost = lost[:min(len(lost), api.MaxLost)]
	e.Stale.More = len(lost) - len(e.Stale.Lost)
	return e
}
