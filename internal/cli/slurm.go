package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/slurm"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) slurmCommand() *cobra.Command {
	return group(
		"slurm",
		"What Slurm must know of the GPUs of this node, and what it runs for its jobs",
		a.slurmGresCommand(),
		a.slurmCheckCommand(),
		a.slurmInstallCommand(),
		a.slurmUninstallCommand(),
		a.slurmPrologCommand(),
		a.slurmTaskPrologCommand(),
		a.slurmHealthCommand(),
	)
}

// slurmFlags are the flags of both commands.
type slurmFlags struct {
	node string
	gpus []string
}

func (f *slurmFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.node, "node", "", "Slurm's name of this node, its NodeName (default the host's name without its domain)")
	c.Flags().StringSliceVar(&f.gpus, "gpu", nil, "only these GPUs, by index or UUID; the others are open to every job (default all)")
}

// gresOf reads what Slurm should know.
func (a *app) gresOf(ctx context.Context, f *slurmFlags) (*slurm.Gres, error) {
	s, err := a.client.Status(ctx)
	if err != nil {
		return nil, err
	}
	node := f.node
	if node == "" {
		node, _, _ = strings.Cut(s.Node.Host, ".")
	}
	var gpus []string
	if !slurm.NodeName(node) {
		return nil, usageError{err: fmt.Errorf("%q is no name of a node of Slurm", node), hint: "name it with --node"}
	}
	for _, name := range f.gpus {
		if i, err := gpuNamed(s, name); err != nil {
			return nil, err
		} else if i < 0 {
			return nil, usageError{err: fmt.Errorf("there is no GPU %q", name), hint: "'gpushare gpu list' shows them"}
		} else if !slices.Contains(gpus, s.GPUs[i].UUID) {
			gpus = append(gpus, s.GPUs[i].UUID)
		}
	}
	want := slurm.Of(s, node, gpus)
	return &want, nil
}

func (a *app) slurmGresCommand() *cobra.Command {
	var f slurmFlags
	c := &cobra.Command{
		Use:   "gres [flags]",
		Short: "Print gres.conf for this node, and what slurm.conf needs",
		Args:  noArgs,
		Long: `Gres prints the lines of gres.conf for the GPUs as they are now: whole GPUs, MIG instances as
MultipleFiles, and GPUs that are shared in time or by MPS as shards of 1 GiB, as many as the grants may
have together. What slurm.conf needs are comments. It reads the status of gpushared, and needs
neither NVML nor AutoDetect.

Every GPU has a line, also one that only local users should have: with ConstrainDevices too, a GPU that
gres.conf does not name is open to every job.`,
		Example: "  gpushare slurm gres\n  gpushare slurm gres --node gpu01 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := a.gresOf(cmd.Context(), &f)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(api.SlurmGres{
					SchemaVersion: 1,
					Node:          want.Node,
					GresConf:      want.Conf(),
					GresTypes:     want.Types(),
					Gres:          want.NodeGres(),
					Notes:         notNil(want.Notes),
				})
			}
			fmt.Fprint(a.io.Out, want.Text())
			return nil
		},
	}
	f.add(c)
	return c
}

// Limits of the programs of Slurm. slurmd waits 20 s for a device that is not there, and scontrol for slurmctld longer than that.
const (
	slurmTimeout = 5 * time.Second
	slurmOutput  = 1 << 20
)

func (a *app) slurmCheckCommand() *cobra.Command {
	var f slurmFlags
	var dir string
	c := &cobra.Command{
		Use:   "check [flags]",
		Short: "Compare what Slurm knows of this node with what is",
		Args:  noArgs,
		Long: `Check compares what 'gpushare slurm gres' would print with what slurmd makes of gres.conf and
slurm.conf ('slurmd -G'), and with the state of the node ('scontrol show node'), and says the remedy of each
difference. It also says whether the scripts of 'gpushare slurm install' are there, of this version, and run
by Slurm ('scontrol show config'). Each command is waited for up to 5 s. It changes nothing, and exits with 6 if there is a
difference, or if nothing could be compared. It reads the files as they are: a slurmd that was started
before they were changed reads them after 'scontrol reconfigure'.`,
		Example: "  gpushare slurm check\n  gpushare slurm check --node gpu01 --json | jq '.differences[].remedy'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := a.gresOf(cmd.Context(), &f)
			if err != nil {
				return err
			}
			out := a.compareSlurm(cmd.Context(), want, f.node != "")
			a.compareSite(cmd.Context(), dir, &out)
			if a.json {
				if err := a.printJSON(out); err != nil {
					return err
				}
			} else {
				a.slurmCheck(&out)
			}
			if len(out.Differences)+len(out.Unknown) > 0 {
				return &exitError{code: api.ExitDegraded}
			}
			return nil
		},
	}
	f.add(c)
	c.Flags().StringVar(&dir, "dir", slurm.Directory, "the directory, on this node, where slurm.conf is")
	return c
}

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// installedSlurm are the directories where packages and sites install it, for a PATH that lacks them.
var installedSlurm = []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/slurm/sbin", "/opt/slurm/bin"}

// slurmProgram runs one of Slurm's programs.
func (a *app) slurmProgram(ctx context.Context, name string, args ...string) (string, error) {
	return a.slurmProgramWithin(ctx, slurmTimeout, name, args...)
}

// slurmProgramWithin is slurmProgram with a limit of its own.
func (a *app) slurmProgramWithin(ctx context.Context, limit time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dirs := filepath.SplitList(a.getenv("PATH"))
	out, err := external.Output(ctx, slurmOutput, append(dirs, installedSlurm...), name, args...)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%s did not answer within %s", name, limit)
	}
	return out, err
}

// compareSlurm asks slurmd and slurmctld, and compares. named: the node was named; slurmd finds it by the host's name otherwise, and not
// every build of it takes a name.
func (a *app) compareSlurm(ctx context.Context, want *slurm.Gres, named bool) api.SlurmCheck {
	out := api.SlurmCheck{
		SchemaVersion: 1, Node: want.Node, Differences: []api.SlurmDifference{}, Unknown: []string{}, Notes: notNil(want.Notes),
	}
	have, err := a.slurmdKnows(ctx, want.Node, named)
	if err != nil {
		out.Unknown = append(out.Unknown, "what slurmd knows: "+err.Error())
	}
	var node *slurm.Node
	output, err := a.slurmProgram(ctx, "scontrol", "-o", "show", "node", want.Node)
	if n, ok := slurm.ParseNode(output); ok {
		node, out.Version = &n, n.Version
	} else {
		out.Unknown = append(out.Unknown, "the state of the node: "+why(err, "slurmctld has no node "+want.Node))
	}
	out.Differences = append(out.Differences, slurm.Compare(want, have, node)...)
	return out
}

// slurmdKnows is what slurmd makes of its files. The error says why that is not known; what it printed is there nevertheless.
func (a *app) slurmdKnows(ctx context.Context, node string, named bool) (*slurm.Report, error) {
	query := []string{"-G"}
	if named {
		query = []string{"-N", node, "-G"}
	}
	output, err := a.slurmProgram(ctx, "slurmd", query...)
	have := slurm.ParseReport(output)
	switch {
	case err != nil && len(have.Problems) == 0:
		return &have, err
	case err == nil && !have.Comparable():
		return &have, errors.New("'slurmd -G' names no GPU")
	}
	return &have, nil
}

// why is why something is not known.
func why(err error, otherwise string) string {
	if err != nil {
		return err.Error()
	}
	return otherwise
}

func (a *app) slurmCheck(c *api.SlurmCheck) {
	for _, d := range c.Differences {
		fmt.Fprintf(a.io.Out, "%s  %s\n", a.verdict("fail"), printable(d.Message))
		if d.Remedy != "" {
			fmt.Fprintf(a.io.Out, "      %s\n", printable(d.Remedy))
		}
	}
	for _, u := range c.Unknown {
		fmt.Fprintf(a.io.Out, "unknown: %s\n", printable(u))
	}
	for _, n := range c.Notes {
		fmt.Fprintf(a.io.Out, "note: %s\n", printable(n))
	}
	switch {
	case len(c.Differences) > 0:
		fmt.Fprintf(a.io.Out, "%s on %s\n", text.Count(len(c.Differences), "difference"), c.Node)
	case len(c.Unknown) == 0:
		fmt.Fprintf(a.io.Out, "Slurm %s knows the GPUs of %s as they are\n", c.Version, c.Node)
	}
}
