package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/text"
)

// mostStops is how many leases one command stops at the same time: each takes its grace period.
const mostStops = 8

func (a *app) leaseStop() *cobra.Command {
	var which view
	var all, yes bool
	c := &cobra.Command{
		Use:   "stop ID… | --tenant T | --gpu N | --user U | --mine | --all",
		Short: "Stop leases: SIGTERM, a grace period, then SIGKILL",
		Long: `Stop ends the leases with these ids, or those that the flags select, of those that you may stop.
Selected leases are listed first, and stopped after a question; --yes answers it. A lease that waits
in the queue is not stopped: end its command. A stop that was begun goes on without this command.`,
		Example:           "  gpushare lease stop vision-train-x7k2 vision-dev-3kq6\n  gpushare lease stop --tenant vision\n  gpushare lease stop --all --yes",
		ValidArgsFunction: a.complete(leasesOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			selected := all || which.selective()
			switch {
			case len(args) == 0 && !selected:
				return usageError{
					err:  fmt.Errorf("'%s' needs the id of a lease", cmd.CommandPath()),
					hint: "--tenant, --gpu, --user, --mine and --all select several",
				}
			case len(args) > 0 && selected:
				return usageError{err: errors.New("ids and flags that select leases exclude each other")}
			case all && which.selective():
				return usageError{err: errors.New("--all and the other flags that select leases exclude each other")}
			case which.mine && which.user != "":
				return usageError{err: errors.New("--mine and --user exclude each other")}
			}
			if selected {
				var err error
				if args, err = a.leasesToStop(cmd, &which); err != nil || len(args) == 0 {
					return err
				}
				if err := a.agree(cmd.Context(), fmt.Sprintf("Stop %s?", text.Count(len(args), "lease")), yes); err != nil {
					return err
				}
			}
			return a.stopLeases(cmd.Context(), args)
		},
	}
	a.whichFlags(c, &which)
	c.Flags().BoolVar(&all, "all", false, "every lease that you may stop")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// leasesToStop lists the running leases that are selected and that the caller may stop.
func (a *app) leasesToStop(cmd *cobra.Command, which *view) ([]string, error) {
	info, err := a.client.Info(cmd.Context())
	if err != nil {
		return nil, err
	}
	s, err := a.client.Status(cmd.Context())
	if err != nil {
		return nil, err
	}
	if which.selective() {
		if err := which.restrict(s, info.Caller.UID); err != nil {
			return nil, err
		}
	}
	var ids []string
	var leases []api.Lease
	for i := range s.Leases {
		l := &s.Leases[i]
		if l.State == api.LeaseQueued || info.Caller.Role != "admin" && l.UID != info.Caller.UID {
			continue
		}
		ids, leases = append(ids, l.ID), append(leases, *l)
	}
	s.Leases = leases
	if a.json {
		if len(ids) == 0 {
			return nil, a.printJSON(map[string]any{"schema_version": 1, "stopped": []string{}})
		}
		return ids, nil
	}
	if len(ids) == 0 {
		fmt.Fprintln(a.io.Out, "no lease to stop")
		return nil, nil
	}
	a.statusLeases(s, columnsOf(a.io.Out), false, false)
	return ids, nil
}

// agree asks a question on the terminal. Without a terminal there is no one to ask.
func (a *app) agree(ctx context.Context, question string, yes bool) error {
	if yes {
		return nil
	}
	if !isTerminal(a.io.Err) || a.json {
		return usageError{err: errors.New("nothing was changed: there is no terminal to ask on"), hint: "--yes answers the question"}
	}
	if said, _ := a.answer(ctx, question); said {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &exitError{code: api.ExitFailed, err: errors.New("nothing was changed")}
}

// answer asks a question on the terminal; given is false at the end of the input and after Ctrl-C.
func (a *app) answer(ctx context.Context, question string) (yes, given bool) {
	fmt.Fprint(a.io.Err, question+" [y/N] ")
	in := boundedread.Scanner(a.io.In, boundedread.Command)
	given = in.Scan() && ctx.Err() == nil
	switch strings.ToLower(strings.TrimSpace(in.Text())) {
	case "y", "yes":
		return given, given
	}
	if !given && ctx.Err() == nil {
		fmt.Fprintln(a.io.Err)
	}
	return false, given
}

// stopLeases stops several leases, and reports each in the order of the ids. The last error is that of the command, which prints it.
func (a *app) stopLeases(ctx context.Context, ids []string) error {
	failed, meant := make([]error, len(ids)), slices.Clone(ids)
	done := make([]chan struct{}, len(ids))
	slots := make(chan struct{}, mostStops)
	var all sync.WaitGroup
	for i := range ids {
		done[i] = make(chan struct{})
		all.Go(func() {
			defer close(done[i])
			slots <- struct{}{}
			defer func() { <-slots }()
			failed[i] = a.withLease(ctx, ids[i], false, func(id string) error {
				meant[i] = id
				return a.client.StopLease(ctx, id)
			})
		})
	}
	var last error
	stopped := []string{}
	for i := range ids {
		<-done[i]
		id := meant[i]
		switch err := failed[i]; {
		case err == nil:
			stopped = append(stopped, id)
			if !a.json {
				fmt.Fprintf(a.io.Out, "stopped %s\n", id)
			}
		case last == nil:
			last = err
		case !errors.Is(err, context.Canceled):
			fmt.Fprintf(a.io.Err, "gpushare: %s\n", sentence(last.Error()))
			last = err
		}
	}
	all.Wait()
	if a.json && (last == nil || len(stopped) > 0) {
		var out any = stopped
		if len(ids) == 1 {
			out = stopped[0]
		}
		if err := a.printJSON(map[string]any{"schema_version": 1, "stopped": out}); err != nil {
			return err
		}
	}
	return last
}
