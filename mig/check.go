package mig

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// Check returns why the driver cannot carry out every step of the plan, or cannot undo one without Force. It is called before the first
// step: a GPU whose MIG mode was changed has lost its work, also when no instance can be created then.
func (r Result) Check(m gpu.MIGState, o Options) error {
	var err error
	switch {
	case len(r.Create)+len(r.Complete)+len(r.Destroy) > 0, r.Mode != nil && r.Mode.On:
		err = m.Missing.CanChange(r.Mode != nil)
	case r.Mode != nil:
		err = m.Missing.CanSetMode()
	}
	if err != nil {
		return fmt.Errorf("cannot change MIG: %w", err)
	}
	for _, b := range r.Destroy {
		if why := Irreversible(b.Instance, m.Missing); why != "" && !o.Force {
			return &NoUndo{Instance: placedOf(r.profiles, b.Instance).String(), Why: why}
		}
	}
	return nil
}

// Irreversible says why an instance could not be created again as it was; empty: it could. missing is what the library lacks.
func Irreversible(in gpu.Instance, missing *gpu.MissingMIG) string {
	for _, c := range in.Compute {
		switch {
		case c.SliceCount() == 0:
			return "the driver reports neither placement nor profile of its compute instance"
		case len(in.Compute) > 1 && !c.Again().Exact():
			return missing.NoIdentity()
		}
	}
	return ""
}

// NoUndo refuses to destroy an instance that no undo could create again. --force allows it.
type NoUndo struct {
	Instance string // "3g.20gb of 2c+1c at 0"
	Why      string
}

// Error names the instance and what the driver does not report.
func (e *NoUndo) Error() string {
	return fmt.Sprintf("cannot destroy %s: it could not be created again, because %s", e.Instance, e.Why)
}

// NotUndone compares a GPU, as it was read back, with what it was before steps that were undone. It lists the differences: what
// is missing, and what is left.
func NotUndone(s gpu.Snapshot, steps []step.Step) (out []string) {
	before := map[gpu.Placement]bool{}
	at := func(a InstanceArgs) *gpu.Instance {
		i := slices.IndexFunc(s.Instances, func(in gpu.Instance) bool { return in.ProfileID == a.ProfileID && in.Placement == a.Placement })
		if i < 0 {
			return nil
		}
		return &s.Instances[i]
	}
	for i := range steps {
		var mode ModeArgs
		var a InstanceArgs
		st := &steps[i]
		was := st.Undo
		if st.Irreversible != "" {
			was = st.Args
		}
		switch {
		case len(was) == 0: // It is not undone.
		case st.Kind == KindMode && decode(was, &mode) == nil && s.MIG.Current != mode.On:
			out = append(out, "MIG mode is "+onOff(s.MIG.Current))
		case st.Kind == KindDestroy && decode(was, &a) == nil:
			before[a.Placement] = true
			if in := at(a); in == nil || !a.Orphan && !a.complete(*in) {
				out = append(out, a.String()+" is missing")
			}
		case st.Kind == KindCreate && decode(was, &a) == nil && at(a) != nil && !before[a.Placement]:
			out = append(out, a.String()+" is left")
		}
	}
	return out
}
