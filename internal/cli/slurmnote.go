package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
	"github.com/gpushare/gpushare/internal/slurm"
)

// noteDirectory has the notes of jobs. It is empty after a boot; the Epilog removes the note of its job.
const noteDirectory = "/run/gpushare-slurm"

// notePath is where the note of a job is.
func (a *app) notePath(job uint64) string {
	dir := a.getenv("GPUSHARE_SLURM_NOTES")
	if dir == "" {
		dir = noteDirectory
	}
	return filepath.Join(dir, "job_"+strconv.FormatUint(job, 10))
}

// writeNote writes the note of a job, which only its user reads: it names leases of others where it was refused.
func (a *app) writeNote(job *slurm.Job, n *slurm.Note) error {
	text, err := n.Text()
	if err != nil {
		return err
	}
	path := a.notePath(job.ID)
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := ownDirectory(dir); err != nil {
		return fmt.Errorf("cannot write to %s: %w", dir, err)
	}
	if err := durable.Replace(path, text, durable.Options{Mode: 0o400, Prefix: ".job_", Volatile: true}); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return os.Lchown(path, int(job.UID), -1)
}

// ownDirectory refuses a directory in which another user can write.
func ownDirectory(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return errors.New("it is no directory, or a link")
	case !ok || int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return errors.New("it belongs to another user")
	case info.Mode().Perm()&0o022 != 0:
		return errors.New("other users may write there")
	}
	return nil
}

func (a *app) slurmTaskPrologCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "task-prolog",
		Short: "Print the environment of a task, as Slurm's TaskProlog",
		Args:  noArgs,
		Long: `Task-prolog is what the TaskProlog of Slurm runs: 'gpushare slurm install' writes it. It prints lines that
Slurm takes: the environment of the job's lease, CUDA_VISIBLE_DEVICES with the UUIDs of the GPUs or the instance
that the step has, and if the job was refused its lease, a line of its output with the reason. Where Slurm gave
the task a part of the GPUs of its step, CUDA_VISIBLE_DEVICES is left as Slurm has set it.

It reads what the Prolog left on this node, asks neither Slurm nor gpushared, and exits with 0.`,
		Example: "  gpushare slurm task-prolog",
		RunE: func(*cobra.Command, []string) error {
			id, err := strconv.ParseUint(a.getenv("SLURM_JOB_ID"), 10, 32)
			if err != nil {
				return nil //nolint:nilerr // It is no task of Slurm: there is nothing to print.
			}
			text, err := boundedread.Trusted(a.notePath(id), slurm.MostNote)
			if err != nil {
				return nil //nolint:nilerr // The job has no GPU, or its Prolog is another one.
			}
			note, err := slurm.ParseNote(text)
			if err != nil {
				return nil //nolint:nilerr // A task must not fail for what it can do without.
			}
			for _, line := range note.ForTask(a.getenv) {
				fmt.Fprintln(a.io.Out, line)
			}
			return nil
		},
	}
}
