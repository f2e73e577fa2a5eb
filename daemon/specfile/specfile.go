// Package specfile applies the spec_file of the settings, at start and on reload. It decides no change: package change does.
package specfile

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/spec"
)

// condition is the kind of the condition of a spec_file that was not applied.
const condition = "spec-file"

// Source is a file with its drop-ins. Without a file it does nothing.
type Source struct {
	*report.Reporter
	File  string
	State *state.State
	Apply func(ctx context.Context, d *spec.Document, by string) (*api.ApplyResult, error)
}

// First applies the file at start, if it was changed since: its selectors keep their meaning until the next apply. An error is
// a condition: the spec in force stays.
func (s *Source) First(ctx context.Context) {
	acc := s.State.Stored().Accepted
	if s.File != "" && acc != nil && acc.Unmanaged == "" {
		d, err := spec.ReadFiles(s.File)
		now, was := spec.DecodeAccepted("state.json", []byte(acc.YAML))
		if err == nil && was == nil && d.Is(now) {
			return
		}
	}
	if _, err := s.Reload(ctx, s.File); err != nil {
		s.Log.Error("cannot apply the spec file", "file", s.File, "error", err)
	}
}

// Reload applies the file if it says something else than the spec in force. by is who requested it. An unmanaged node stays
// unmanaged, and without a file there is nothing to apply: then the answer is nil.
func (s *Source) Reload(ctx context.Context, by string) (*api.ApplyResult, error) {
	if s.File == "" {
		return nil, nil
	}
	apply := "gpushare apply -f " + spec.Argument(s.File)
	if acc := s.State.Stored().Accepted; acc != nil && acc.Unmanaged != "" {
		s.Conditions.Set(
			condition, "", fmt.Sprintf("%s is not applied: %s unmanaged the node", s.File, acc.By), "'"+apply+"' manages it again",
		)
		return nil, nil
	}
	d, err := spec.ReadFiles(s.File)
	var out *api.ApplyResult
	if err == nil {
		out, err = s.Apply(ctx, d, by)
	}
	if err != nil {
		s.Conditions.Set(
			condition, "", s.File+" was not applied, the spec in force stays: "+err.Error(),
			"correct it, then 'gpushare config reload'; '"+apply+" --check' shows the plan",
		)
		return nil, err
	}
	s.Conditions.Clear(condition, "")
	return out, nil
}
