package change

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/step"
)

// planUnmanageRest plans the removal of CDI specs and of the limits of logins, where the node has them.
func (cs *Changes) planUnmanageRest() ([]step.Step, error) {
	var out []step.Step
	add := func(kind, text string) {
		out = append(out, step.Step{Kind: kind, Phase: step.Change, Text: text, Reason: "the node is unmanaged", Disruption: step.None})
	}
	files, err := cs.cdiFiles()
	if err != nil {
		return nil, err
	}
	if len(files) > 0 {
		add(planner.KindCDIRemove, fmt.Sprintf("remove %d CDI specs (%s)", len(files), cs.Settings.CDIDir))
	}
	users, err := cs.Adopter.LimitedUsers()
	if err != nil {
		return nil, err
	}
	if users > 0 {
		add(planner.KindLoginLimits, fmt.Sprintf("remove the memory limits of the logins of %d users", users))
	}
	return out, nil
}

// cdiFiles lists the CDI specs that gpushare wrote.
func (cs *Changes) cdiFiles() ([]string, error) {
	entries, err := os.ReadDir(cs.Settings.CDIDir)
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
func (h UnmanageStep) Applied(_ context.Context, s step.Step) (bool, error) {
	if s.Kind == planner.KindCDIRemove {
		files, err := h.D.cdiFiles()
		return err == nil && len(files) == 0, err
	}
	users, err := h.D.Adopter.LimitedUsers()
	return err == nil && users == 0, err
}

// Do removes it, also when the driver does not answer.
func (h UnmanageStep) Do(ctx context.Context, s step.Step) error {
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
