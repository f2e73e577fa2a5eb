package unmanage

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

// planRest plans the removal of CDI specs, of the limits of logins and of the GPU-memory limits of attached cgroups,
// where the node has them. What a GPU that does not answer keeps is a warning.
func (u *Unmanaging) planRest() (out []step.Step, warnings []string, err error) {
	add := func(kind, text string) {
		out = append(out, step.Step{Kind: kind, Phase: step.Change, Text: text, Reason: "the node is unmanaged", Disruption: step.None})
	}
	files, err := u.cdiFiles()
	if err != nil {
		return nil, nil, err
	}
	if len(files) > 0 {
		add(planner.KindCDIRemove, fmt.Sprintf("remove %d CDI specs (%s)", len(files), u.CDIDir))
	}
	users, err := u.Adopter.LimitedUsers()
	if err != nil {
		return nil, nil, err
	}
	if users > 0 {
		add(planner.KindLoginLimits, fmt.Sprintf("remove the memory limits of the logins of %d users", users))
	}
	ctx, cancel := context.WithTimeout(u.Tasks.Context(), observe.Timeout)
	defer cancel()
	limited, err := u.Memory.Attached(ctx)
	if err != nil {
		warnings = append(warnings, "the GPU-memory limits of attached cgroups may stay: "+err.Error())
	}
	if limited > 0 {
		add(planner.KindMemoryLimits, fmt.Sprintf("remove the GPU-memory limits of %d attached cgroups", limited))
	}
	return out, warnings, nil
}

// cdiFiles lists the CDI specs that gpushare wrote.
func (u *Unmanaging) cdiFiles() ([]string, error) {
	entries, _, err := boundedread.Entries(u.CDIDir, boundedread.Files)
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

// Step carries out the steps of these kinds.
type Step struct{ U *Unmanaging }

// Applied reports whether nothing of the kind is left.
func (h Step) Applied(ctx context.Context, s step.Step) (bool, error) {
	if s.Kind == planner.KindMemoryLimits {
		n, err := h.U.Memory.Attached(ctx)
		return err == nil && n == 0, err
	}
	if s.Kind == planner.KindCDIRemove {
		files, err := h.U.cdiFiles()
		return err == nil && len(files) == 0, err
	}
	users, err := h.U.Adopter.LimitedUsers()
	return err == nil && users == 0, err
}

// Do removes it, also when the driver does not answer.
func (h Step) Do(ctx context.Context, s step.Step) error {
	if s.Kind == planner.KindMemoryLimits {
		return h.U.Memory.RemoveAttached(ctx)
	}
	if s.Kind == planner.KindCDIRemove {
		h.U.Policy.CDI.Mu.Lock()
		defer h.U.Policy.CDI.Mu.Unlock()
		h.U.Policy.CDI.Grants = map[state.GrantKey]bool{}
		return h.U.Policy.SyncCDILocked(nil)
	}
	return h.U.Adopter.AdoptAll(ctx) // The spec in force is that of an unmanaged node: it adopts nothing, and limits are removed.
}

// Undo does nothing: the next spec creates it again.
func (h Step) Undo(context.Context, step.Step) error { return nil }
