package change

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/internal/spec"
)

// onlyFromFiles refuses a spec that is not that of spec_file, if there is one: the next reload would replace it. The same spec
// is applied with its drop-ins, so that options of apply can be given to it. A check changes nothing, and may be of any.
func (cs *Changes) onlyFromFiles(d *spec.Document, check bool) (*spec.Document, error) {
	file := cs.Settings.SpecFile
	if file == "" {
		return d, nil
	}
	files, err := spec.ReadFiles(file)
	if err == nil && files.Means(d.Spec) {
		return files, nil
	}
	if check {
		return d, nil
	}
	return nil, &api.Error{
		Kind:    api.KindConflict,
		Message: fmt.Sprintf("cannot apply the spec: %s is its only source on this node (spec_file in the daemon's settings)", file),
		Hint: fmt.Sprintf(
			"change %s, then 'gpushare config reload'; 'gpushare apply -f %s' applies it with options such as --force", file,
			spec.Argument(file),
		),
	}
}

// ApplyDocument applies a spec without any option, if it says something else than the one in force.
func (cs *Changes) ApplyDocument(ctx context.Context, d *spec.Document, by string) (*api.ApplyResult, error) {
	done, err := cs.lockChanges(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	p, err := cs.propose(ctx, d, nil, planner.Authority{})
	if err != nil {
		return nil, err
	}
	out := &api.ApplyResult{Generation: p.want.Generation, Plan: p.plan, Changed: !p.same}
	if p.same {
		return out, nil
	}
	if out.Operation, err = cs.accept(ctx, p, by, planner.Authority{}); err == nil {
		cs.Audit(by, p.kind(), p.auditText(planner.Authority{}))
	}
	return out, err
}
