package cli

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

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

// writeNote writes the note of a job. It belongs to root, because its user could let their own grow in /run, and only its user reads it: it
// names leases of others where it was refused. Where the file system has no access lists, all read it, and it does not say why.
func (a *app) writeNote(job *slurm.Job, n *slurm.Note) error {
	path := a.notePath(job.ID)
	dir := filepath.Dir(path)
	if err := durable.MakeDirectory(dir, 0o711); err != nil {
		return err
	}
	if err := ownDirectory(dir); err != nil {
		return fmt.Errorf("cannot write to %s: %w", dir, err)
	}
	write := func(n *slurm.Note, mode fs.FileMode) error {
		text, err := n.Text()
		if err != nil {
			return err
		}
		if err := durable.Replace(path, text, durable.Options{Mode: mode, Prefix: ".job_", Volatile: true}); err != nil {
			return fmt.Errorf("cannot write %s: %w", path, err)
		}
		return nil
	}
	if err := write(n, 0o400); err != nil || int(job.UID) == os.Geteuid() {
		return err
	}
	err := unix.Setxattr(path, accessList, readableBy(job.UID), 0)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	public := *n
	if public.Refused != "" {
		public.Refused = "the journal of the node says why (gpushare-prolog)"
	}
	return write(&public, 0o444)
}

// accessList is the attribute of a file that has its access list.
const accessList = "system.posix_acl_access"

// readableBy is an access list, as in linux/posix_acl_xattr.h: its owner and this user read the file.
func readableBy(uid uint32) []byte {
	const none, read = 0, 4
	out := binary.LittleEndian.AppendUint32(nil, 2) // the version
	for _, e := range []struct {
		tag, permitted uint16
		id             uint32
	}{
		{0x01, read, math.MaxUint32}, // its owner
		{0x02, read, uid},
		{0x04, none, math.MaxUint32}, // its group
		{0x10, read, math.MaxUint32}, // the most that a user of the list has
		{0x20, none, math.MaxUint32}, // the others
	} {
		out = binary.LittleEndian.AppendUint16(out, e.tag)
		out = binary.LittleEndian.AppendUint16(out, e.permitted)
		out = binary.LittleEndian.AppendUint32(out, e.id)
	}
	return out
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
