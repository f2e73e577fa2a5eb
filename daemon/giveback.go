package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/gpushare/gpushare/internal/step"
)

// The kinds of step that take back what loops of their own keep as the spec in force says. Those loops do the same, sooner
// or later: the steps are there to be shown, and for whoever waits to know that it is done. What was taken back is made
// again by the next spec, so they have no undo.
const (
	KindCDIRemove = "cdi.remove"    // no arguments
	KindUnlimit   = "logins.remove" // no arguments
	KindAllowMove = "policy.remove" // no arguments
)

// planGiveBackRest is the steps for what the node has of those.
func (d *Changes) planGiveBackRest() ([]step.Step, error) {
	var out []step.Step
	add := func(kind, text string) {
		out = append(out, step.Step{Kind: kind, Phase: step.Change, Text: text, Reason: "the node is given back", Disruption: step.None})
	}
	files, err := d.cdiFiles()
	if err != nil {
		return nil, err
	}
	if len(files) > 0 {
		add(KindCDIRemove, fmt.Sprintf("take %d descriptions for container runtimes away (%s)", len(files), d.settings.CDIDir))
	}
	users, err := d.adopter.limited()
	if err != nil {
		return nil, err
	}
	if users > 0 {
		add(KindUnlimit, fmt.Sprintf("take the memory limits of the logins of %d users back", users))
	}
	if p := d.port.Abilities().Migration; p != nil {
		denied, err := p.MigrationDenied()
		if err != nil {
			return nil, err
		}
		if denied {
			add(KindAllowMove, "take the bus policy away that denies leaving a lease")
		}
	}
	return out, nil
}

// cdiFiles lists our descriptions for container runtimes.
func (d *Changes) cdiFiles() ([]string, error) {
	entries, err := os.ReadDir(d.settings.CDIDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list what container runtimes are told: %w", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), cdiPrefix) && strings.HasSuffix(e.Name(), ".json") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// giveBack carries out the steps of these kinds.
type giveBack struct{ d *Changes }

// Applied tells whether nothing of the kind is left.
func (h giveBack) Applied(_ context.Context, s step.Step) (bool, error) {
	if p := h.d.port.Abilities().Migration; p != nil && s.Kind == KindAllowMove {
		denied, err := p.MigrationDenied()
		return err == nil && !denied, err
	}
	if s.Kind == KindCDIRemove {
		files, err := h.d.cdiFiles()
		return err == nil && len(files) == 0, err
	}
	users, err := h.d.adopter.limited()
	return err == nil && users == 0, err
}

// Do takes it back, whatever the driver says.
func (h giveBack) Do(ctx context.Context, s step.Step) error {
	if p := h.d.port.Abilities().Migration; p != nil && s.Kind == KindAllowMove {
		return p.AllowMigration(ctx)
	}
	if s.Kind == KindCDIRemove {
		h.d.policy.cdi.mu.Lock()
		defer h.d.policy.cdi.mu.Unlock()
		h.d.policy.cdi.grants = map[grantKey]bool{}
		return h.d.policy.syncCDILocked(nil)
	}
	return h.d.adopter.adoptAll(ctx) // The spec in force is that of a node that was given back: it adopts nobody.
}

// Undo does nothing: the next spec makes it again.
func (h giveBack) Undo(context.Context, step.Step) error { return nil }
