package planner

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mig"
)

// Remedies are the commands that the hint of a refusal names.
type Remedies struct {
	Node *observe.Node
	// Command is the refused one without authority, as in "gpushare gpu retry 0", and Had is the authority that it had.
	Command string
	Had     Authority
	// Removes reports whether 'gpushare mig remove' works on a GPU now.
	Removes func(gpu.UUID) bool
}

// WaitForUsers is the hint of a refusal because of processes that no authority stops. The message names them.
const WaitForUsers = "wait until they end, or stop them"

// hint is what to do about the reason why a GPU cannot be changed: one command, or a process to wait for. Empty: the spec
// itself must change. What disturbs no process comes first: foreign instances that are idle are removed, before others are stopped.
func (r *Remedies) hint(id gpu.UUID, err error) string {
	var infeasible *mig.Infeasible
	var inUse *mig.InUse
	var unknown *mig.UnknownProfiles
	var noUndo *mig.NoUndo
	switch {
	case errors.As(err, &noUndo):
		return fmt.Sprintf("'%s' destroys it nevertheless: if a later step fails, it is not created again", r.with(Authority{Force: true}))
	case errors.As(err, &unknown):
		return "'gpushare apply' of a spec with 'mig: {dynamic: true}' for that GPU turns the mode on; a layout can be applied then, and its profiles are known from then on"
	case errors.Is(err, gpu.ErrResetRequired):
		return fmt.Sprintf("'%s' lets the driver reset that GPU, which must be idle then", r.with(Authority{AllowReset: true}))
	case errors.As(err, &infeasible):
		foreign := idleForeign(infeasible.Blocked)
		switch {
		case len(foreign) > 0 && r.Removes != nil && r.Removes(id):
			return fmt.Sprintf("'%s' removes what gpushare does not manage", r.removal(id, foreign))
		case errors.Is(err, gpu.ErrInUse):
			return r.force()
		case len(foreign) > 0:
			return fmt.Sprintf("'%s' removes what gpushare does not manage, and stops what is in use", r.with(Authority{Force: true}))
		case len(infeasible.Pinned) > 0:
			return WaitForUsers
		}
	case errors.As(err, &inUse) && inUse.Unstoppable:
		return WaitForUsers
	case errors.As(err, &inUse) && inUse.Reset:
		return fmt.Sprintf(
			"wait until they end, or '%s' stops them (SIGTERM, then SIGKILL) and resets the GPU",
			r.with(Authority{Force: true, AllowReset: true}),
		)
	case errors.Is(err, gpu.ErrInUse):
		return r.force()
	case gpu.IsAny(err, gpu.ErrLost, gpu.ErrTimeout, gpu.ErrStuck, gpu.ErrNotLoaded):
		return fmt.Sprintf("'gpushare gpu retry %s' tries it again; 'gpushare doctor' has more", r.name(id))
	}
	return ""
}

func (r *Remedies) force() string {
	return fmt.Sprintf("wait until they end, or '%s' stops them (SIGTERM, then SIGKILL)", r.with(Authority{Force: true}))
}

// with is the refused command with more authority.
func (r *Remedies) with(more Authority) string {
	out := r.Command
	if r.Had.AllowReset || more.AllowReset {
		out += " --allow-reset"
	}
	if r.Had.Force || more.Force {
		out += " --force"
	}
	return out
}

// removal is the command that removes instances.
func (r *Remedies) removal(id gpu.UUID, instances []mig.Present) string {
	var starts []uint32
	for i := range instances {
		starts = append(starts, instances[i].Placement.Start)
	}
	return removal(r.name(id), starts)
}

func removal(name string, starts []uint32) string {
	words := []string{"gpushare mig remove", name}
	for _, s := range starts {
		words = append(words, fmt.Sprint(s))
	}
	return strings.Join(words, " ")
}

// name is the index of a GPU, or its UUID where the index is not known.
func (r *Remedies) name(id gpu.UUID) string {
	if r.Node != nil {
		if g, ok := r.Node.GPU(id); ok && g.Identity.Index >= 0 {
			return fmt.Sprint(g.Identity.Index)
		}
	}
	return string(id)
}

// idleForeign are the foreign instances that no process uses.
func idleForeign(present []mig.Present) []mig.Present {
	var out []mig.Present
	for _, b := range present {
		if b.Foreign && !b.InUse {
			out = append(out, b)
		}
	}
	return out
}
