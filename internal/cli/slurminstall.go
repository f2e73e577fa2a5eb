package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	scripts "github.com/gpushare/gpushare/examples/slurm"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
	"github.com/gpushare/gpushare/internal/slurm"
	"github.com/gpushare/gpushare/internal/version"
)

// slurmSite is where the scripts of Slurm are, and what they are written with.
type slurmSite struct {
	dir, tenant, grant, node string
	dry, force               bool
}

func (f *slurmSite) add(c *cobra.Command) {
	c.Flags().StringVar(&f.dir, "dir", slurm.Directory, "the directory, on this node, where slurm.conf is")
	c.Flags().BoolVar(&f.dry, "dry-run", false, "say what would be done, and change nothing")
}

func (a *app) slurmInstallCommand() *cobra.Command {
	var f slurmSite
	c := &cobra.Command{
		Use:   "install [flags]",
		Short: "Write what Slurm runs for its jobs on this node",
		Args:  noArgs,
		Long: `Install writes four scripts below the directory of slurm.conf, and prints the lines of slurm.conf that run
them, which it never edits:

  prolog.d/gpushare      Prolog: a lease for each job with GPUs
  epilog.d/gpushare      Epilog: ends it, and adds to the output of the job why gpushare ended processes of it
  gpushare-taskprolog    TaskProlog: UUIDs in CUDA_VISIBLE_DEVICES, and why the job has no lease
  gpushare-health        HealthCheckProgram: drains the node if a GPU is unusable

A second time it writes what another version wrote, and leaves what is the same. A file that gpushare did not
write is not replaced, and then none is written. A site with a Prolog or an Epilog of its own keeps it: Slurm runs
all files of prolog.d and epilog.d. Of TaskProlog and HealthCheckProgram it runs one: let yours call these.

Write them on every node of the cluster before the lines are in slurm.conf, on nodes without GPUs too, where they
do nothing: a pattern such as prolog.d/* that matches no file is a failure for Slurm, and the first job of such
a node drains it.

The directory and the files belong to root, and none may be a link: Slurm runs them as root.`,
		Example: "  gpushare slurm install --dry-run\n  gpushare slurm install --tenant slurm --grant jobs",
		RunE: func(*cobra.Command, []string) error {
			return a.slurmInstall(&f)
		},
	}
	f.add(c)
	c.Flags().StringVarP(&f.tenant, "tenant", "t", "", "the tenant whose grants jobs have leases of (default slurm)")
	c.Flags().StringVar(&f.grant, "grant", "", "the grant (default: the one that fits what a job has)")
	c.Flags().StringVar(&f.node, "node", "", "Slurm's name of this node, its NodeName (default the host's name without its domain)")
	a.completeFlag(c, "tenant", func(s *api.Status) []string { return tenantsOf(s) })
	a.completeFlag(c, "grant", func(s *api.Status) []string { return grantsOf(s, f.tenant) })
	return c
}

// variables are the lines that are set in each script.
func (f *slurmSite) variables() ([]string, error) {
	var out []string
	for _, v := range [][3]string{
		{"GPUSHARE_TENANT", f.tenant, "--tenant"}, {"GPUSHARE_GRANT", f.grant, "--grant"}, {"GPUSHARE_NODE", f.node, "--node"},
	} {
		if v[1] == "" {
			continue
		}
		line, err := slurm.Variable(v[0], v[1])
		if err != nil {
			return nil, usageError{err: fmt.Errorf("invalid %s: %w", v[2], err), hint: "'gpushare tenant list' shows the names"}
		}
		out = append(out, line)
	}
	// A HealthCheckProgram has no SLURM_CONF: Slurm's programs look for it where their package has it.
	if strings.ContainsAny(f.dir, "'\n") || !filepath.IsAbs(f.dir) {
		return nil, usageError{
			err:  fmt.Errorf("invalid --dir %q: it is no absolute path, or has quotes", f.dir),
			hint: "name the directory of slurm.conf",
		}
	}
	conf := filepath.Join(f.dir, "slurm.conf")
	return append(out, fmt.Sprintf("[ -n \"${SLURM_CONF:-}\" ] || [ ! -e '%[1]s' ] || export SLURM_CONF='%[1]s'", conf)), nil
}

// textOf is a script by the setting that runs it.
func textOf(setting string) string {
	return map[string]string{
		"Prolog": scripts.Prolog, "Epilog": scripts.Epilog, "TaskProlog": scripts.TaskProlog, "HealthCheckProgram": scripts.Health,
	}[setting]
}

func (a *app) slurmInstall(f *slurmSite) error {
	variables, err := f.variables()
	if err != nil {
		return err
	}
	out := api.SlurmInstall{SchemaVersion: 1, Directory: f.dir, DryRun: f.dry, SlurmConf: slurm.SiteLines(f.dir)}
	texts := map[string]string{}
	for _, s := range slurm.Scripts() {
		path := filepath.Join(f.dir, s.File)
		if err := siteDirectories(f.dir, filepath.Dir(path)); err != nil {
			return err
		}
		have, was, err := siteScript(path)
		if err != nil {
			return err
		}
		texts[path] = slurm.Headed(textOf(s.Setting), version.Version, variables)
		file := api.SlurmFile{Path: path, Setting: s.Setting, Done: "written", Version: was}
		switch {
		case have == texts[path] && scriptProblem(path) == "":
			file.Done = "unchanged"
		case have != "" && was == "":
			return notOfGpushare(path, s)
		case have != "":
			file.Done = "replaced"
		}
		out.Files = append(out.Files, file)
	}
	for _, file := range out.Files {
		if f.dry || file.Done == "unchanged" {
			continue
		}
		if err := durable.MakeDirectory(filepath.Dir(file.Path), 0o755); err != nil {
			return err
		}
		if err := siteDirectories(f.dir, filepath.Dir(file.Path)); err != nil {
			return err
		}
		// The mode and the owner of what was there are not kept: Slurm runs it as root.
		err := durable.Replace(file.Path, []byte(texts[file.Path]), durable.Options{Mode: scriptMode, Prefix: ".gpushare-"})
		if err != nil {
			return fmt.Errorf("cannot write %s: %w", file.Path, err)
		}
	}
	return a.slurmSiteDone(
		&out, "run it on every node of the cluster first, also on those without GPUs: Slurm drains a node that lacks its Prolog.\n"+
			"Then slurm.conf needs (without RunInJob before Slurm 24.05):",
	)
}

func notOfGpushare(path string, s slurm.Script) error {
	return &api.Error{
		Kind:    api.KindConflict,
		Message: fmt.Sprintf("cannot write %s: a file is there that gpushare did not write", path),
		Hint: fmt.Sprintf(
			"nothing was changed; give it another name in %s: Slurm runs what %s= names", filepath.Dir(path), s.Setting,
		),
	}
}

func (a *app) slurmUninstallCommand() *cobra.Command {
	var f slurmSite
	c := &cobra.Command{
		Use:   "uninstall [flags]",
		Short: "Remove what 'gpushare slurm install' wrote",
		Args:  noArgs,
		Long: `Uninstall removes the scripts that 'gpushare slurm install' wrote, of any version. Files that gpushare did not
write stay, and so do the directories prolog.d and epilog.d. It prints the lines of slurm.conf that run them.

It is refused while Slurm runs a script that would be removed ('scontrol show config'), and if that is not known: a
Prolog or an Epilog that is missing drains the node at its next job, and a job whose TaskProlog is missing does not
start. Remove the lines from slurm.conf first, and reconfigure; --force removes the scripts nevertheless. Jobs that
run keep their leases until they end.`,
		Example: "  gpushare slurm uninstall --dry-run\n  gpushare slurm uninstall",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.slurmUninstall(cmd.Context(), &f)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&f.force, "force", false, "also if Slurm runs them, which drains the node")
	return c
}

func (a *app) slurmUninstall(ctx context.Context, f *slurmSite) error {
	out := api.SlurmInstall{SchemaVersion: 1, Directory: f.dir, DryRun: f.dry, SlurmConf: slurm.SiteLines(f.dir)}
	var removed []slurm.Script
	for _, s := range slurm.Scripts() {
		path := filepath.Join(f.dir, s.File)
		if err := siteDirectories(f.dir, filepath.Dir(path)); err != nil {
			return err
		}
		have, was, err := siteScript(path)
		if err != nil {
			return err
		}
		file := api.SlurmFile{Path: path, Setting: s.Setting, Done: "removed", Version: was}
		switch {
		case have == "":
			file.Done = "absent"
		case was == "":
			file.Done = "kept"
		default:
			removed = append(removed, s)
		}
		out.Files = append(out.Files, file)
	}
	if !f.force {
		if err := a.refuseRunning(ctx, f.dir, removed); err != nil {
			return err
		}
	}
	for _, file := range out.Files {
		if f.dry || file.Done != "removed" {
			continue
		}
		if err := os.Remove(file.Path); err != nil {
			return fmt.Errorf("cannot remove %s: %w", file.Path, err)
		}
	}
	return a.slurmSiteDone(&out, "slurm.conf must name none of these any more:")
}

// refuseRunning refuses to remove scripts that Slurm runs, or may run.
func (a *app) refuseRunning(ctx context.Context, dir string, scripts []slurm.Script) error {
	if len(scripts) == 0 {
		return nil
	}
	settings, err := a.slurmSettings(ctx)
	if err != nil {
		return &api.Error{
			Kind:    api.KindConflict,
			Message: "cannot remove the scripts in " + dir + ": whether Slurm runs them is not known: " + err.Error(),
			Hint:    "nothing was changed; a script that Slurm runs and that is missing drains the node: if no slurm.conf runs them, 'gpushare slurm uninstall --force'",
		}
	}
	for _, s := range scripts {
		if s.Runs(settings, dir) {
			return &api.Error{
				Kind: api.KindConflict,
				Message: fmt.Sprintf(
					"cannot remove %s: Slurm runs it (%s=%s), and without it %s", filepath.Join(dir, s.File), s.Setting,
					strings.Join(settings[s.Setting], ","), s.Missing,
				),
				Hint: "nothing was changed; remove the lines from slurm.conf and 'scontrol reconfigure' first, or --force",
			}
		}
	}
	return nil
}

// siteDirectories refuses a directory that a script would not be safe in: Slurm runs it as root. One that is not there is created later.
func siteDirectories(dirs ...string) error {
	for i, dir := range dirs {
		err := ownDirectory(dir)
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			continue
		}
		if err != nil {
			hint := fmt.Sprintf("'ls -ld %s' shows it; --dir names the directory of slurm.conf", dir)
			return &api.Error{Kind: api.KindConflict, Message: "cannot use " + dir + ": " + err.Error(), Hint: hint}
		}
	}
	return nil
}

// scriptMode is the mode of a script.
const scriptMode fs.FileMode = 0o755

// scriptProblem is what is wrong with the owner or the mode of a script: another user could change what root runs, or Slurm cannot run it.
// Empty: nothing.
func scriptProblem(path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		return err.Error()
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return "it belongs to another user than root"
	case info.Mode() != scriptMode:
		return fmt.Sprintf("its mode is %s, and not %s", info.Mode(), scriptMode)
	}
	return ""
}

// siteScript reads a script, and which version wrote it; empty: gpushare did not. A file that is not there is empty.
func siteScript(path string) (text, version string, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "", nil
	case err != nil:
		return "", "", fmt.Errorf("cannot read %s: %w", path, err)
	case !info.Mode().IsRegular():
		return "", "", &api.Error{
			Kind:    api.KindConflict,
			Message: fmt.Sprintf("cannot use %s: it is no regular file", path),
			Hint:    fmt.Sprintf("nothing was changed; 'ls -ld %s' shows it", path),
		}
	}
	b, err := boundedread.Trusted(path, boundedread.Settings)
	if err != nil {
		return "", "", fmt.Errorf("cannot read %s: %w", path, err)
	}
	if text = string(b); text == "" {
		text = "\n" // It is there.
	}
	version, _ = slurm.HeaderOf(text)
	return text, version, nil
}

// slurmSiteDone prints what was done with the scripts.
func (a *app) slurmSiteDone(out *api.SlurmInstall, lines string) error {
	if a.json {
		return a.printJSON(out)
	}
	would := ""
	if out.DryRun {
		would = "would be "
	}
	for _, f := range out.Files {
		switch f.Done {
		case "unchanged":
			fmt.Fprintf(a.io.Out, "%s is there\n", f.Path)
		case "absent":
			fmt.Fprintf(a.io.Out, "%s is not there\n", f.Path)
		case "kept":
			fmt.Fprintf(a.io.Out, "%s stays: gpushare did not write it\n", f.Path)
		case "replaced":
			fmt.Fprintf(a.io.Out, "%s %sreplaced: %s had written it\n", f.Path, would, printable(f.Version))
		default:
			fmt.Fprintf(a.io.Out, "%s %s%s\n", f.Path, would, f.Done)
		}
	}
	fmt.Fprintln(a.io.Out, "\n"+lines)
	for _, line := range out.SlurmConf {
		fmt.Fprintln(a.io.Out, "  "+line)
	}
	return nil
}
