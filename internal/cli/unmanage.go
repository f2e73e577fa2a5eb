package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/store"
)

func (a *app) unmanageCommand() *cobra.Command {
	var o client.UnmanageOptions
	var d draining
	var noWait bool
	var settings string
	c := &cobra.Command{
		Use: "unmanage [--all]", Short: "Stop managing the node: remove every restriction of gpushare", Args: noArgs,
		Long: `Unmanage removes every restriction that gpushare set on this node: cgroup slices with
their limits and device rules, the login filter, MPS control daemons with the compute
modes that they set, and CDI files. The spec is kept and only observed. MIG instances
stay. 'gpushare apply' with 'node.enforce: on' manages the node again.

With --all the GPUs are restored too: MIG instances that gpushare created are removed,
changed modes return to what they were before, and no spec stays in force. Instances
of others are never changed. To change its MIG mode a GPU may need a reset. Then the
mode stays, and the output names the command that restores it.

A GPU that an engine places on (owner: slurm) is restored, or its MPS stopped, as by
'gpushare apply': not while jobs may have it.

Without --force nothing in use is stopped. Processes outside a lease are never stopped:
a slice that contains some loses its restrictions, and the next 'gpushare unmanage'
removes it after they end.

With --check nothing is changed. It lists the active restrictions and exits with 5, or
with 0 when there are none. It also works without the daemon, from the saved state.`,
		Example: "  gpushare unmanage --check\n  gpushare unmanage\n  gpushare unmanage --all --force",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if env := a.getenv("GPUSHARE_SETTINGS"); env != "" && !cmd.Flags().Changed("settings") {
				settings = env
			}
			res, err := a.sendUnmanage(cmd.Context(), o, &d)
			if err != nil && o.Check && unreachable(err) {
				return a.checkSavedState(settings, err)
			}
			if err != nil {
				return err
			}
			if o.Check {
				return a.unmanageCheck(cmd, res)
			}
			if a.json {
				return a.applyJSON(cmd, res, noWait, leftActive)
			}
			var left error
			if res.Operation == nil {
				left = leftActive(res)
			}
			if left != nil {
				res.Plan.Unreachable = nil // The error has them.
			}
			if !res.Changed || !res.Plan.Empty {
				a.plan(cmd.Context(), &res.Plan, false, res.Changed)
			}
			switch {
			case left != nil || !res.Changed:
				return left
			case res.Operation == nil:
				fmt.Fprintln(a.io.Out, "done: the node is unmanaged")
				return nil
			case noWait:
				fmt.Fprintf(
					a.io.Out, "the change is running: 'gpushare operation wait %s' waits for the end\n", printable(res.Operation.ID),
				)
				return nil
			}
			return a.follow(cmd.Context(), res.Operation)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.All, "all", false, "also restore the GPUs: remove instances of gpushare, restore modes, keep no spec in force")
	f.BoolVar(&o.Check, "check", false, "change nothing: list the active restrictions, and exit with 5 when there are any")
	f.BoolVar(&o.Force, "force", false, "stop running leases: SIGTERM, a grace period, then SIGKILL; allow steps that cannot be undone")
	jobFlags(c, &o.Drained, &d)
	f.BoolVar(&noWait, "no-wait", false, "do not wait for the change to finish")
	f.StringVar(
		&settings, "settings", settingsPath,
		"settings file of the daemon, to find its state for --check without the daemon (or $GPUSHARE_SETTINGS)",
	)
	return c
}

// sendUnmanage unmanages the node; next to jobs of Slurm as send sends a spec.
func (a *app) sendUnmanage(ctx context.Context, o client.UnmanageOptions, d *draining) (res *api.ApplyResult, err error) {
	err = a.nextToJobs(ctx, &o.Drained, d, func() (err error) {
		res, err = a.client.Unmanage(ctx, o)
		return err
	})
	return res, err
}

// leftActive is the outcome of an unmanage without steps; nil if nothing is left.
func leftActive(res *api.ApplyResult) error {
	if res.Plan.Complete() {
		return nil
	}
	return leftAfter("the steps of 'gpushare unmanage' are done", res)
}

// unmanageCheck shows the active restrictions.
func (a *app) unmanageCheck(cmd *cobra.Command, res *api.ApplyResult) error {
	active := !res.Plan.Empty || !res.Plan.Complete() // What could not be read may be active.
	if a.json {
		if err := a.printJSON(struct {
			SchemaVersion int  `json:"schema_version"`
			Active        bool `json:"active"`
			*api.ApplyResult
		}{1, active, res}); err != nil {
			return err
		}
	} else if !active {
		fmt.Fprintln(a.io.Out, "gpushare has no active restrictions on this node")
	} else if res.Plan.Empty {
		a.warnUnreachable(&res.Plan)
		fmt.Fprintln(a.io.Out, "restrictions may be active: not everything could be read")
	} else {
		a.plan(cmd.Context(), &res.Plan, true, false)
	}
	if active {
		return &exitError{code: api.ExitConflict}
	}
	return nil
}

// settingsPath is the default path of the daemon's settings.
const settingsPath = "/etc/gpushare/gpushared.yaml"

// checkSavedState answers from the state on disk whether restrictions are active. When it cannot know, it says that they are.
func (a *app) checkSavedState(settings string, cause error) error {
	const hint = "start the daemon ('systemctl start gpushared'), then 'gpushare unmanage'"
	dir, err := stateDir(settings)
	var s *store.State
	if err == nil {
		s, err = store.Peek(dir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s = &store.State{} // No daemon ever changed this node.
	case err != nil:
		return &api.Error{
			Kind: api.KindInUse,
			Message: "cannot tell whether restrictions are active, so they may be: the daemon does not answer, and " +
				strings.TrimPrefix(err.Error(), "cannot "),
			Hint: hint,
		}
	}
	if s.ActiveRestrictions || len(s.Change) > 0 {
		return &api.Error{
			Kind: api.KindInUse,
			Message: fmt.Sprintf(
				"restrictions are active: generation %d was enforced and the node was not unmanaged since; only the daemon can list them, and it does not answer (%s)",
				generationOf(s),
				cause,
			),
			Hint: hint,
		}
	}
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int  `json:"schema_version"`
			Active        bool `json:"active"`
		}{1, false})
	}
	fmt.Fprintln(a.io.Out, "no active restrictions, according to the saved state")
	return nil
}

func generationOf(s *store.State) uint64 {
	if s.Accepted == nil {
		return 0
	}
	return s.Accepted.Generation
}

func unreachable(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Kind == api.KindUnavailable
}

func isNotFound(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Kind == api.KindNotFound
}

// stateDir reads one key of the daemon's settings, a flat file. Only the daemon checks the rest.
func stateDir(settings string) (string, error) {
	const usual = "/var/lib/gpushare"
	b, err := boundedread.Trusted(settings, boundedread.Settings)
	if errors.Is(err, fs.ErrNotExist) {
		return usual, nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the settings: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		v, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "state_dir:")
		if !ok {
			continue
		}
		v, _, _ = strings.Cut(v, " #")
		v = strings.TrimSpace(v)
		if u, err := strconv.Unquote(v); err == nil {
			v = u
		}
		return strings.Trim(v, "'"), nil
	}
	return usual, nil
}
