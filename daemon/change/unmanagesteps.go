package change

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// planUnmanageRest plans the removal of CDI specs, of the limits of logins and of the GPU-memory limits of attached cgroups,
// where the node has them. What a GPU that does not answer keeps is a warning.
func (cs *Changes) planUnmanageRest() (out []step.Step, warnings []string, err error) {
	add := func(kind, text string) {
		out = append(out, step.Step{Kind: kind, Phase: step.Change, Text: text, Reason: "the node is unmanaged", Disruption: step.None})
	}
	files, err := cs.cdiFiles()
	if err != nil {
		return nil, nil, err
	}
	if len(files) > 0 {
		add(planner.KindCDIRemove, fmt.Sprintf("remove %d CDI specs (%s)", len(files), cs.Settings.CDIDir))
	}
	users, err := cs.Adopter.LimitedUsers()
	if err != nil {
		return nil, nil, err
	}
	if users > 0 {
		add(planner.KindLoginLimits, fmt.Sprintf("remove the memory limits of the logins of %d users", users))
	}
	ctx, cancel := context.WithTimeout(cs.Tasks.Context(), observe.Timeout)
	defer cancel()
	limited, err := cs.Memory.Attached(ctx)
	if err != nil {
		warnings = append(warnings, "the GPU-memory limits of attached cgroups may stay: "+err.Error())
	}
	if limited > 0 {
		add(planner.KindMemoryLimits, fmt.Sprintf("remove the GPU-memory limits of %d attached cgroups", limited))
	}
	return out, warnings, nil
}

// cdiFiles lists the CDI specs that gpushare wrote.
func (cs *Changes) cdiFiles() ([]string, error) {
	entries, _, err := boundedread.Entries(cs.Settings.CDIDir, boundedread.Files)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list CDI specs: %w", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), devicepolicy.CdiPrefix) && strings.HasSuffix(e.Name(), ".json") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// UnmanageStep carries out the steps of these kinds.
type UnmanageStep struct{ D *Changes }

// Applied reports whether nothing of the kind is left.
func (h UnmanageStep) Applied(ctx context.Context, s step.Step) (bool, error) {
	if s.Kind == planner.KindMemoryLimits {
		n, err := h.D.Memory.Attached(ctx)
		return err == nil && n == 0, err
	}
	if s.Kind == planner.KindCDIRemove {
		files, err := h.D.cdiFiles()
		return err == nil && len(files) == 0, err
	}
	users, err := h.D.Adopter.LimitedUsers()
	return err == nil && users == 0, err
}

// Do removes it, also when the driver does not answer.
func (h UnmanageStep) Do(ctx context.Context, s step.Step) error {
	if s.Kind == planner.KindMemoryLimits {
		return h.D.Memory.RemoveAttached(ctx)
	}
	if s.Kind == planner.KindCDIRemove {
		h.D.Policy.CDI.Mu.Lock()
		defer h.D.Policy.CDI.Mu.Unlock()
		h.D.Policy.CDI.Grants = map[state.GrantKey]bool{}
		return h.D.Policy.SyncCDILocked(nil)
	}
	return h.D.Adopter.AdoptAll(ctx) // The spec in force is that of an unmanaged node: it adopts nothing, and limits are removed.
}

// Undo does nothing: the next spec creates it again.
func (h UnmanageStep) Undo(context.Context, step.Step) error { return nil }
