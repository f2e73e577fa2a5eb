package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// mostPermissions is how often one command requests a permission.
const mostPermissions = 3

// withPermission makes a request, and repeats it with the permission to reset GPUs if it is refused without, and the answer to the question
// is yes. The permission is for the GPUs that were shown: where the repeated request would reset another one, it is requested again.
func (a *app) withPermission(ctx context.Context, from string, mayRequest bool, request func(resets []string) error) error {
	err := request(nil)
	for repeated := 0; err != nil && mayRequest && repeated < mostPermissions; repeated++ {
		needs, _ := errors.AsType[*api.Error](err)
		if err = a.permitted(ctx, err, from); err != nil {
			break
		}
		err = request(needs.Resets)
	}
	return err
}

// permitted asks on a terminal whether the GPUs of a refused request may be reset. It returns nil if they may: the request is repeated
// with that permission. Without a terminal, or if the input is the document itself, the refusal stays what it is.
func (a *app) permitted(ctx context.Context, err error, from string) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Kind != api.KindNeedsPermission || len(e.Resets) == 0 || from == "-" || a.json || !isTerminal(a.io.Err) || a.scripted() {
		return err
	}
	if e.Plan == nil {
		fmt.Fprintln(a.io.Err, sentence(e.Message))
	} else {
		a.plan(ctx, e.Plan, true, true)
	}
	switch yes, given := a.answer(ctx, "Reset "+a.resetNames(ctx, e)+" now?"); {
	case yes:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case !given:
		return err
	}
	return &exitError{code: api.ExitNeedsPermission, err: errors.New("nothing was changed")}
}

// scripted reports whether the input is a file or a pipe: what it has next may be meant for another program.
func (a *app) scripted() bool {
	f, ok := a.terminalIn.(*os.File)
	return ok && !isTerminal(f)
}

// resetNames are the GPUs that a refused request would reset, as people call them.
func (a *app) resetNames(ctx context.Context, e *api.Error) string {
	steps := make([]api.PlanStep, len(e.Resets))
	for i, id := range e.Resets {
		steps[i].GPU = id
	}
	names := a.gpuNames(ctx, steps)
	var out []string
	for _, id := range e.Resets {
		out = append(out, printable(names.byUUID[id]))
	}
	return strings.Join(out, ", ")
}
