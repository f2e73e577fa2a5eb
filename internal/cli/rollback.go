package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
)

func (a *app) rollbackCommand() *cobra.Command {
	var o client.ApplyOptions
	var how applying
	c := &cobra.Command{
		Use: "rollback [GENERATION]", Short: "Put an earlier spec in force again",
		Long: `Rollback applies a spec of 'gpushare history', without a generation the one before the spec
in force. It is an apply like every other: the daemon plans the steps and checks that they
are possible, nothing in use is stopped without --force, and the result is a new
generation. If another spec is applied meanwhile the rollback is refused.`,
		Example:           "  gpushare rollback --check --diff\n  gpushare rollback\n  gpushare rollback 7 --force",
		Args:              atMostOneGeneration,
		ValidArgsFunction: a.completeGenerations,
		RunE: func(cmd *cobra.Command, args []string) error {
			now, to, err := a.rollbackTo(cmd.Context(), args)
			if err != nil {
				return err
			}
			doc, err := a.client.Revision(cmd.Context(), to)
			if err != nil {
				return err
			}
			if how.match == nil {
				how.match = &now
			}
			o.File = "generation " + to
			if !a.json {
				fmt.Fprintln(a.io.Out, "back to "+revisionHead(doc))
			}
			return a.applied(cmd, []byte(doc.YAML), o, &how)
		},
	}
	a.applyFlags(c, &o, &how)
	return c
}

// rollbackTo finds the generation in force, and the one to go back to.
func (a *app) rollbackTo(ctx context.Context, args []string) (now uint64, to string, err error) {
	h, err := a.client.History(ctx)
	if err != nil {
		return 0, "", err
	}
	before := ""
	for i := range h.Revisions {
		r := &h.Revisions[i]
		if r.InForce {
			now = r.Generation
			break
		}
		if r.Unmanaged != "all" {
			before = strconv.FormatUint(r.Generation, 10)
		}
	}
	if len(args) == 1 {
		return now, args[0], nil
	}
	if before == "" {
		return 0, "", &api.Error{
			Kind:    api.KindNotFound,
			Message: "there is no spec before the one in force",
			Hint:    "'gpushare history' lists the specs that were in force",
		}
	}
	return now, before, nil
}
