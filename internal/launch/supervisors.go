package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// ErrUnknown: there is no record of this id.
var ErrUnknown = errors.New("there is no record of it")

// Supervisors starts programs under supervisors, and reads their records. Set the fields before the first use. Its state is
// in the directory, so it can be used after a restart of the daemon.
type Supervisors struct {
	Dir     string // of outputs and records; created if missing
	Program string // gpushare-start
}

// Cgroups are the open directories of the cgroups to start in. The zero value is for none.
type Cgroups struct {
	Run        *os.File // of the program
	Supervisor *os.File // of its supervisor: that is not frozen with the program, and is no process of the lease
}

// Start starts a supervisor, and under it a gpushare-start that waits for its program. Of the output at most kept bytes are
// kept, 0: MaxOutput.
func (k *Supervisors) Start(ctx context.Context, id string, in Cgroups, kept int64) (*Pending, error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the directory of outputs: %w", err)
	}
	k.Remove(id) // of an earlier lease with this id
	local, remote, err := Pair()
	if err != nil {
		return nil, err
	}
	defer remote.Close()
	args := []string{"--supervise", k.Dir, id, strconv.FormatInt(cmp.Or(kept, MaxOutput), 10)}
	files := []*os.File{remote}
	if in.Run != nil {
		args, files = append(args, "cgroup"), append(files, in.Run)
	}
	cmd := exec.Command(k.Program, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "GOMAXPROCS=1"}
	cmd.Dir, cmd.ExtraFiles = "/", files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if in.Supervisor != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(in.Supervisor.Fd())
	}
	if err := cmd.Start(); err != nil {
		local.Close()
		return nil, fmt.Errorf("cannot start a supervisor process: %w", err)
	}
	go func() { _ = cmd.Wait() }() // ends with the process or with the daemon; its result is in the record
	return Await(ctx, local)
}

// Main is the supervised program of the id, of this boot.
func (k *Supervisors) Main(id string) (Process, error) {
	r, err := k.record(id)
	if err != nil {
		return Process{}, err
	}
	return r.Main, nil
}

// record is the record of this boot.
func (k *Supervisors) record(id string) (*record, error) {
	r, err := readRecord(k.Dir, id)
	if err != nil {
		return nil, err
	}
	boot, err := procfs.BootID("/")
	if err != nil {
		return nil, err
	}
	if r.Boot != boot {
		return nil, ErrUnknown
	}
	return r, nil
}

// Note writes a line of the daemon to the output.
func (k *Supervisors) Note(id, line string) error {
	f, err := os.OpenFile(outputPath(k.Dir, id), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("cannot write to the output of %s: %w", id, err)
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// Size is how many bytes of the output are kept.
func (k *Supervisors) Size(id string) (bytes int64) {
	for _, path := range []string{outputPath(k.Dir, id), older(outputPath(k.Dir, id))} {
		if st, err := os.Stat(path); err == nil {
			bytes += st.Size()
		}
	}
	return bytes
}

// Remove removes the output and the record of the id.
func (k *Supervisors) Remove(id string) {
	for _, path := range []string{recordPath(k.Dir, id), outputPath(k.Dir, id), older(outputPath(k.Dir, id))} {
		_ = os.Remove(path) // Missing files are no error.
	}
}

// Prune removes the outputs and records of ids that are no longer needed.
func (k *Supervisors) Prune(needed func(id string) bool) {
	entries, _, err := boundedread.Entries(k.Dir, boundedread.Files)
	if err != nil {
		return // There is no directory.
	}
	for _, e := range entries {
		id := e.Name()
		for _, suffix := range []string{".new", ".1", ".json", ".log"} {
			id = strings.TrimSuffix(id, suffix)
		}
		if !needed(id) {
			_ = os.Remove(filepath.Join(k.Dir, e.Name())) // It is tried again at the next start.
		}
	}
}
