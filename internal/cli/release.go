package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/store"
)

func (a *app) releaseCommand() *cobra.Command {
	var o client.ReleaseOptions
	var noWait bool
	var settings string
	c := &cobra.Command{
		Use: "release [--all]", Short: "Give the node back: take walls, MPS and what else holds anybody away", Args: noArgs,
		Long: `Release takes away everything that holds anybody: the slices with their limits and
device rules, the guard, MPS control daemons with the compute modes that they set,
and CDI files. The spec is kept and only observed; MIG instances stay, and an apply
of 'node.enforce: on' starts again.

With --all GPUs are given back too: MIG instances of ours go, modes that were changed
become what they were found as, and no spec is in force any more. What others made is
never touched. Turning MIG mode off may need a reset of the GPU: it then stays on, and
that is said.

Nothing in use is stopped without --force. Processes of no lease are never stopped:
a slice that holds some is opened, and a release after their end removes it.

With --check nothing is changed: it lists what stands and exits with 5, or with 0 when
nothing does. It answers without the daemon too, from the state that the daemon left.`,
		Example: "  gpushare release --check\n  gpushare release\n  gpushare release --all --force",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if env := a.getenv("GPUSHARE_SETTINGS"); env != "" && !cmd.Flags().Changed("settings") {
				settings = env
			}
			res, err := a.client.Release(cmd.Context(), o)
			if err != nil && o.Check && unreachable(err) {
				return a.leftBehind(settings, err)
			}
			if err != nil {
				return err
			}
			if o.Check {
				return a.releaseCheck(cmd, res)
			}
			if a.json {
				return a.applyJSON(cmd, res, noWait)
			}
			if !res.Changed {
				a.plan(cmd.Context(), &res.Plan, false, false)
				return nil
			}
			if !res.Plan.Empty {
				a.plan(cmd.Context(), &res.Plan, false, true)
			}
			switch {
			case res.Operation == nil:
				fmt.Fprintln(a.io.Out, "done: the node is given back")
				return nil
			case noWait:
				fmt.Fprintln(a.io.Out, "the node is being given back: 'gpushare status' shows how far it is")
				return nil
			}
			return a.follow(cmd, res.Operation)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.All, "all", false, "GPUs too: instances of ours go, modes become what they were; no spec stays in force")
	f.BoolVar(&o.Check, "check", false, "change nothing: list what stands, and exit with 5 when something does")
	f.BoolVar(&o.Force, "force", false, "stop the leases that live, the polite way: SIGTERM, grace, SIGKILL")
	f.BoolVar(&noWait, "no-wait", false, "do not wait for the change to end")
	f.StringVar(&settings, "settings", settingsPath, "the daemon's settings, which say where its state is: for --check without the daemon (or $GPUSHARE_SETTINGS)")
	return c
}

// releaseCheck shows what stands.
func (a *app) releaseCheck(cmd *cobra.Command, res *api.ApplyResult) error {
	stands := !res.Plan.Empty
	if a.json {
		if err := a.printJSON(struct {
			SchemaVersion int  `json:"schema_version"`
			Stands        bool `json:"stands"`
			*api.ApplyResult
		}{1, stands, res}); err != nil {
			return err
		}
	} else if !stands {
		fmt.Fprintln(a.io.Out, "nothing stands: nobody is held by gpushare")
	} else {
		a.plan(cmd.Context(), &res.Plan, true, false)
	}
	if stands {
		return &exitError{code: api.ExitConflict}
	}
	return nil
}

// settingsPath is where the daemon's settings usually are.
const settingsPath = "/etc/gpushare/gpushared.yaml"

// leftBehind answers from the state on disk whether something stands. When that cannot be told, it is taken to.
func (a *app) leftBehind(settings string, why error) error {
	const hint = "start the daemon ('systemctl start gpushared'), then 'gpushare release'"
	dir, err := stateDir(settings)
	var s *store.State
	if err == nil {
		s, err = store.Peek(dir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s = &store.State{} // There was never a daemon here that did anything.
	case err != nil:
		return &api.Error{Kind: api.KindInUse, Message: "cannot tell whether walls stand, so they are taken to: the daemon does not answer, and " + strings.TrimPrefix(err.Error(), "cannot "), Hint: hint}
	}
	if s.ActiveRestrictions || len(s.Change) > 0 {
		return &api.Error{Kind: api.KindInUse, Message: fmt.Sprintf("walls stand: generation %d was enforced and the node was not given back since; what exactly stands only the daemon can say, and it does not answer (%s)", generationOf(s), why), Hint: hint}
	}
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int  `json:"schema_version"`
			Stands        bool `json:"stands"`
		}{1, false})
	}
	fmt.Fprintln(a.io.Out, "nothing stands, by the state that the daemon left")
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

// stateDir reads one key of the daemon's settings, a flat file. The whole of it is the daemon's to check.
func stateDir(settings string) (string, error) {
	const usual = "/var/lib/gpushare"
	b, err := os.ReadFile(settings)
	if errors.Is(err, fs.ErrNotExist) {
		return usual, nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the settings: %w", err)
	}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		v, ok := strings.CutPrefix(sc.Text(), "state_dir:")
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
