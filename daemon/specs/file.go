package specs

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
)

// condition is the kind of the condition of a spec_file that was not applied.
const condition = "spec-file"

// ApplyChangedFile applies the file at start, if it was changed since: its selectors keep their meaning until the next apply. An error is
// a condition: the spec in force stays.
func (ss *Specs) ApplyChangedFile(ctx context.Context) {
	acc := ss.State.Stored().Accepted
	if ss.File != "" && acc != nil && acc.Unmanaged == "" {
		d, err := spec.ReadFiles(ss.File)
		now, was := spec.DecodeAccepted("state.json", []byte(acc.YAML))
		if err == nil && was == nil && d.Is(now) {
			return
		}
	}
	if _, err := ss.ApplyFile(ctx, ss.File); err != nil {
		ss.Log.Error("cannot apply the spec file", "file", ss.File, "error", err)
	}
}

// ApplyFile applies the file if it says something else than the spec in force. by is who requested it. An unmanaged node stays
// unmanaged, and without a file there is nothing to apply: then the answer is nil.
func (ss *Specs) ApplyFile(ctx context.Context, by string) (*api.ApplyResult, error) {
	if ss.File == "" {
		return nil, nil
	}
	apply := "gpushare apply -f " + spec.Argument(ss.File)
	if acc := ss.State.Stored().Accepted; acc != nil && acc.Unmanaged != "" {
		ss.Conditions.Set(
			condition, "", fmt.Sprintf("%s is not applied: %s unmanaged the node", ss.File, acc.By), "'"+apply+"' manages it again",
		)
		return nil, nil
	}
	d, err := spec.ReadFiles(ss.File)
	var out *api.ApplyResult
	if err == nil {
		out, err = ss.Apply(ctx, d, by)
	}
	if err != nil {
		ss.Conditions.Set(
			condition, "", ss.File+" was not applied, the spec in force stays: "+err.Error(),
			"correct it, then 'gpushare config reload'; '"+apply+" --check' shows the plan",
		)
		return nil, err
	}
	ss.Conditions.Clear(condition, "")
	return out, nil
}

// OnlyFromFile refuses a spec that is not that of spec_file, if there is one: the next reload would replace it. The same spec
// is applied with its drop-ins, so that options of apply can be given to it. A check changes nothing, and may be of any.
func (ss *Specs) OnlyFromFile(d *spec.Document, check bool) (*spec.Document, error) {
	file := ss.File
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
