package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpushare/gpushare/internal/procfs"
)

// ErrUnknown means that nothing is kept under this id.
var ErrUnknown = errors.New("nothing is kept of it")

// Supervisors starts programs under keepers, and reads what those wrote down. Set the fields before the first use. What it
// knows is in the folder: another one, after a restart, goes on where this ended.
type Supervisors struct {
	Dir     string // of outputs and records; made when it is not there
	Program string // gpushare-start
}

// Start starts a keeper, and under it what waits for the word. cgroup is the open directory of the cgroup that this is
// born in, nil for none.
func (k *Supervisors) Start(ctx context.Context, id string, cgroup *os.File) (*Pending, error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the folder of outputs: %w", err)
	}
	k.Remove(id) // of an id that was given before
	local, remote, err := Pair()
	if err != nil {
		return nil, err
	}
	defer remote.Close()
	args := []string{"--supervise", k.Dir, id}
	files := []*os.File{remote}
	if cgroup != nil {
		args, files = append(args, "cgroup"), append(files, cgroup)
	}
	cmd := exec.Command(k.Program, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "GOMAXPROCS=2"}
	cmd.Dir, cmd.ExtraFiles = "/", files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		local.Close()
		return nil, fmt.Errorf("cannot start a keeper: %w", err)
	}
	go func() { _ = cmd.Wait() }() // It outlives us, or is reaped here; how it ended is in its record.
	return Await(ctx, local)
}

// Main is the program that is kept under the id, of this boot.
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

// Result tells how the program ended, after all its output was written. ErrUnknown when nobody saw it: its keeper was
// killed.
func (k *Supervisors) Result(ctx context.Context, id string) (Result, error) {
	r, err := k.record(id)
	if err != nil {
		return Result{}, err
	}
	if supervisor, err := procfs.OpenPidfd(r.Supervisor.PID, r.Supervisor.Start); err == nil {
		err = supervisor.Wait(ctx)
		supervisor.Close()
		if err != nil {
			return Result{}, fmt.Errorf("cannot tell how %s ended: its keeper still runs: %w", id, err)
		}
	}
	// Only now is what it wrote last there: it may have ended since the record was read.
	if r, err = k.record(id); err != nil {
		return Result{}, err
	}
	if r.Result == nil {
		return Result{}, ErrUnknown
	}
	return *r.Result, nil
}

// Note puts a line of ours into the output.
func (k *Supervisors) Note(id, line string) error {
	f, err := os.OpenFile(outputPath(k.Dir, id), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("cannot write into the output of %s: %w", id, err)
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// Remove removes what is kept under the id.
func (k *Supervisors) Remove(id string) {
	for _, path := range []string{recordPath(k.Dir, id), outputPath(k.Dir, id), older(outputPath(k.Dir, id))} {
		_ = os.Remove(path) // What is not there is removed.
	}
}

// Prune removes everything that is kept of ids that nobody wants any more.
func (k *Supervisors) Prune(needed func(id string) bool) {
	entries, err := os.ReadDir(k.Dir)
	if err != nil {
		return // There is none.
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
