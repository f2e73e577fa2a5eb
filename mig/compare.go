package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// KindCompare is the kind of step that compares the profiles of the driver with those of a plan that was made without them:
// drivers up to branch 550 report profiles only while MIG mode is on. It changes nothing. When it fails, the mode is undone.
const KindCompare = "mig.compare"

// CompareArgs are the arguments of such a step: the instances that the plan creates.
type CompareArgs struct {
	Create []Placed `json:"create"`
	// ByID: the instances were on this GPU before, so their ids are certain and the names are only for people.
	ByID bool `json:"by_id,omitempty"`
}

// compareStep is the step after MIG mode was turned on and before the first instance is created.
func compareStep(a CompareArgs) step.Step {
	return step.Step{
		Kind: KindCompare, Args: step.Must(a), Text: "compare the driver's MIG profiles with those of the plan",
		Reason: "this driver reports its profiles only while MIG mode is on", Disruption: step.None,
	}
}

// ProfilesDiffer is the error for a plan that the driver's own profiles do not allow.
type ProfilesDiffer struct {
	Lacking []Placed
	Offers  []string // what the driver reports, smallest first
}

// Error names the instances and what the driver offers.
func (e *ProfilesDiffer) Error() string {
	names := make([]string, len(e.Lacking))
	for i, p := range e.Lacking {
		names[i] = fmt.Sprintf("%s (profile id %d)", p, p.ProfileID)
	}
	return "the driver does not offer " + strings.Join(names, ", ") + "; it offers " + strings.Join(e.Offers, ", ")
}

// compare returns *ProfilesDiffer when the driver's profiles do not allow these instances.
func compare(p gpu.Profiles, a CompareArgs) error {
	e := &ProfilesDiffer{Offers: offers(p)}
	used := map[uint32]uint32{}
	for _, c := range a.Create {
		used[c.ProfileID]++
		i := slices.IndexFunc(p.GI, func(q gpu.Profile) bool { return q.ID == c.ProfileID })
		if i < 0 || !isProfile(&p.GI[i], c, a.ByID) || used[c.ProfileID] > p.GI[i].Max {
			e.Lacking = append(e.Lacking, c)
		}
	}
	if len(e.Lacking) > 0 {
		return e
	}
	return nil
}

// isProfile reports whether a profile of the driver is the one of a planned instance, and may be at its placement. Names differ
// between drivers by a few percent.
func isProfile(q *gpu.Profile, c Placed, byID bool) bool {
	if n, err := ParseProfile(c.Name); !byID && q.Name != c.Name && (err != nil || !sameLabel(q, n)) {
		return false
	}
	return (c.Slices == 0 || c.Slices == q.Slices) && slices.Contains(q.Placements, c.Placement)
}

// ProfileReader is the part of gpu.Driver that reads profiles.
type ProfileReader interface {
	Profiles(ctx context.Context, id gpu.UUID) (gpu.Profiles, error)
}

// CompareHandler carries out steps of KindCompare.
type CompareHandler struct {
	Driver ProfileReader
	// Report gets the profiles that differ from the plan, so that the next plan is made with them.
	Report func(gpu.UUID, gpu.Profiles)
}

// Applied reports whether the profiles of the driver allow the plan.
func (h *CompareHandler) Applied(ctx context.Context, s step.Step) (bool, error) {
	_, err := h.read(ctx, s)
	if _, differ := errors.AsType[*ProfilesDiffer](err); differ || errors.Is(err, gpu.ErrNotSupported) {
		return false, nil // Not supported: MIG mode is off.
	}
	return err == nil, err
}

// Do compares, and returns what differs.
func (h *CompareHandler) Do(ctx context.Context, s step.Step) error {
	p, err := h.read(ctx, s)
	if _, differ := errors.AsType[*ProfilesDiffer](err); differ && h.Report != nil {
		h.Report(gpu.UUID(s.GPU), p)
	}
	return err
}

// Undo does nothing: a comparison changes nothing.
func (*CompareHandler) Undo(context.Context, step.Step) error { return nil }

func (h *CompareHandler) read(ctx context.Context, s step.Step) (gpu.Profiles, error) {
	var a CompareArgs
	if err := decode(s.Args, &a); err != nil {
		return gpu.Profiles{}, err
	}
	p, err := h.Driver.Profiles(ctx, gpu.UUID(s.GPU))
	if err != nil {
		return p, err
	}
	return p, compare(p, a)
}
