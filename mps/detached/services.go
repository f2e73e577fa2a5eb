package detached

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/mps"
)

// Services runs services. Set the fields before the first use. There must be only one for a directory.
type Services struct {
	Dir string // for records and logs, below the run directory
	// Cgroup is a cgroup v2 directory in which each service gets its own cgroup, and which exists while one does; its parent exists.
	// Empty: no cgroups, a service is in that of its starter and ends with it.
	Cgroup string

	mu      locks.Mutex[locks.AdapterLeaf] // guards results, and Cgroup while it is made or removed
	results map[string]string
}

// tokenEnv marks every process of a service. Children inherit it, also in another session.
const tokenEnv = "GPUSHARE_SERVICE_TOKEN"

// killTimeout is for the end of processes after SIGKILL, which the kernel may delay on a loaded host.
const killTimeout = 10 * time.Second

// record is one started service. It is written with the token before the start, and again with the process after
// it, so that the token finds a start that was interrupted in between.
type record struct {
	Name   string `json:"name"`
	Token  string `json:"token"`
	PID    int    `json:"pid,omitempty"`
	Start  uint64 `json:"start,omitempty"`  // clock ticks since boot
	Cgroup string `json:"cgroup,omitempty"` // as in /proc/PID/cgroup; empty without its own cgroup
	Boot   string `json:"boot"`
}

func (d *Services) recordPath(name string) string { return filepath.Join(d.Dir, name+".json") }
func (d *Services) logPath(name string) string    { return filepath.Join(d.Dir, name+".log") }

// read returns nil when there is no record of this boot.
func (d *Services) read(name string) (*record, error) {
	b, err := boundedread.Trusted(d.recordPath(name), boundedread.Value)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of %s: %w", name, err)
	}
	boot, err := procfs.BootID("/")
	if err != nil {
		return nil, err
	}
	var r record
	if json.Unmarshal(b, &r) != nil || r.Token == "" || r.Boot != boot {
		return nil, nil
	}
	return &r, nil
}

func (d *Services) write(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteUntilBoot(d.recordPath(r.Name), b)
}

// StartService starts the process in its own session and, where possible, its own cgroup. Its output goes to a log file.
func (d *Services) StartService(ctx context.Context, s mps.Service) error {
	st, err := d.ServiceState(ctx, s.Name)
	switch {
	case err != nil:
		return err
	case st.Running || len(st.Leftovers) > 0:
		return fmt.Errorf("cannot start %s: some of its processes still run", s.Name)
	}
	if err := d.start(s); err != nil {
		return fmt.Errorf("cannot start %s: %w", s.Name, err)
	}
	return nil
}

func (d *Services) start(s mps.Service) error {
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return err
	}
	boot, err := procfs.BootID("/")
	if err != nil {
		return err
	}
	r := record{Name: s.Name, Token: rand.Text(), Boot: boot}
	if err := d.write(r); err != nil {
		return err
	}
	p, err := d.spawn(s, r.Token)
	if err != nil {
		return errors.Join(err, os.Remove(d.recordPath(s.Name)))
	}
	r.PID = p
	// It is a child of this process, so its /proc entry exists even when it has ended.
	if r.Start, err = procfs.Start(p); err != nil {
		return err
	}
	if d.Cgroup != "" {
		// Read from /proc, because later it is compared with the same file.
		if r.Cgroup, err = procfs.Cgroup(p); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
			return err
		}
	}
	d.mu.Lock()
	delete(d.results, s.Name)
	d.mu.Unlock()
	return d.write(r)
}

func (d *Services) spawn(s mps.Service, token string) (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	if err := d.keepLog(s.Name); err != nil {
		return 0, err
	}
	out, err := os.OpenFile(d.logPath(s.Name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	sys := &syscall.SysProcAttr{Setsid: true}
	if d.Cgroup != "" {
		dir := d.cgroupOf(s.Name)
		d.mu.Lock()
		err := os.MkdirAll(dir, 0o755)
		d.mu.Unlock()
		if err != nil {
			return 0, err
		}
		f, err := os.Open(dir)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(f.Fd())
	}
	p, err := os.StartProcess(s.Argv[0], s.Argv, &os.ProcAttr{
		Dir: s.Dir, Env: append(slices.Clone(s.Env), tokenEnv+"="+token), Files: []*os.File{null, out, out}, Sys: sys,
	})
	if err != nil {
		return 0, err
	}
	limitFiles(p.Pid, s.OpenFiles)
	// ServiceState and StopService reap it, so that no goroutine must wait for as long as it runs.
	pid = p.Pid
	return pid, p.Release()
}

// limitFiles sets the limit of open files of a process; 0: none. A user without the privilege gets at most the present hard limit.
func limitFiles(pid int, files uint64) {
	var now unix.Rlimit
	if files == 0 || unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now) != nil {
		return // It has ended.
	}
	if unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}, nil) != nil {
		_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(files, now.Max), Max: now.Max}, nil)
	}
}

func (d *Services) cgroupOf(name string) string { return filepath.Join(d.Cgroup, name) }

// ServiceState identifies the process by its pid, start time and cgroup, because a pid alone may be reused.
func (d *Services) ServiceState(ctx context.Context, name string) (mps.ServiceState, error) {
	r, err := d.read(name)
	if r == nil || err != nil {
		return mps.ServiceState{}, err
	}
	if r.PID == 0 {
		if err := d.find(ctx, r); err != nil {
			return mps.ServiceState{}, err
		}
	}
	d.trimLog(name)
	st := mps.ServiceState{Known: true}
	if s, err := procfs.Read(r.PID); err == nil && s.Start == r.Start {
		if !s.Dead() {
			if cg, err := procfs.Cgroup(r.PID); r.Cgroup != "" && err == nil && cg != r.Cgroup {
				return mps.ServiceState{}, fmt.Errorf(
					"cannot read the state of %s: pid %d was moved from cgroup %s to %s", name, r.PID, r.Cgroup, cg,
				)
			}
			st.Running, st.PID = true, r.PID
			return st, nil
		}
		d.reap(name, r)
	}
	st.Result = d.result(name)
	members, err := r.members(ctx)
	if err != nil {
		return mps.ServiceState{}, err
	}
	if r.PID == 0 && len(members) > 0 {
		// It was in execve when it was searched for, where the environment of a process is empty.
		if err := d.found(r, members[0]); err != nil {
			return mps.ServiceState{}, err
		}
		return mps.ServiceState{Known: true, Running: true, PID: r.PID}, nil
	}
	for _, p := range members {
		st.Leftovers = append(st.Leftovers, p.PID)
	}
	return st, nil
}

// find finds the process of a start that was interrupted before its pid was written: the oldest with the token.
func (d *Services) find(ctx context.Context, r *record) error {
	members, err := r.members(ctx)
	if err != nil || len(members) == 0 {
		return err
	}
	return d.found(r, members[0])
}

// found records the process of such a start.
func (d *Services) found(r *record, p procfs.Stat) (err error) {
	r.PID, r.Start = p.PID, p.Start
	if d.Cgroup != "" {
		if r.Cgroup, err = procfs.Cgroup(r.PID); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
			return err
		}
	}
	return d.write(*r)
}

// reap reads the exit status of a child of this process that has ended; init reaps the children of previous runs. The lock
// is held all the time, so that a caller that no longer finds the process finds its result.
func (d *Services) reap(name string, r *record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := procfs.Read(r.PID)
	if err != nil || s.Start != r.Start || !s.Dead() || s.PPID != os.Getpid() {
		return
	}
	var ws unix.WaitStatus
	if pid, err := unix.Wait4(s.PID, &ws, unix.WNOHANG, nil); err != nil || pid != s.PID {
		return
	}
	result := fmt.Sprintf("exited with %d", ws.ExitStatus())
	if ws.Signaled() {
		result = fmt.Sprintf("killed by signal %d", ws.Signal())
	}
	if d.results == nil {
		d.results = map[string]string{}
	}
	d.results[name] = result
}

func (d *Services) result(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.results[name]
}

// StopService ends every process with the service's token: SIGTERM, then SIGKILL.
func (d *Services) StopService(ctx context.Context, name string, timeout time.Duration) error {
	r, err := d.read(name)
	if err != nil {
		return fmt.Errorf("cannot stop %s: %w", name, err)
	}
	if r == nil {
		return nil
	}
	terminating, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := endAll(terminating, r, (*procfs.Pidfd).Terminate); err != nil && ctx.Err() == nil && terminating.Err() == nil {
		return fmt.Errorf("cannot stop %s: %w", name, err)
	}
	killing, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if d.Cgroup != "" {
		// The kernel kills all members at once, also those that fork.
		_ = os.WriteFile(filepath.Join(d.cgroupOf(name), "cgroup.kill"), []byte("1"), 0)
	}
	if err := endAll(killing, r, func(p *procfs.Pidfd, ctx context.Context) error { return p.Signal(ctx, unix.SIGKILL) }); err != nil {
		return fmt.Errorf("cannot stop %s: %w", name, err)
	}
	d.reap(name, r)
	d.mu.Lock()
	delete(d.results, name)
	if d.Cgroup != "" {
		// A cgroup that is not empty is kept; the next start uses it again.
		_ = os.Remove(d.cgroupOf(name))
		_ = os.Remove(d.Cgroup)
	}
	d.mu.Unlock()
	return removeIfThere(d.recordPath(name)) // The log says why it ended; the next start keeps it.
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// endAll signals every process of a service, and those that are started meanwhile, until none is left or ctx ends.
func endAll(ctx context.Context, r *record, send func(*procfs.Pidfd, context.Context) error) error {
	for {
		members, err := r.members(ctx)
		if err != nil {
			return err
		}
		// A process that is about to end no longer has an environment but still has its files: add the main one by its pid.
		if s, err := procfs.Read(r.PID); err == nil && s.Start == r.Start && !s.Dead() &&
			!slices.ContainsFunc(members, func(m procfs.Stat) bool { return m.PID == s.PID }) {
			members = append(members, s)
		}
		if len(members) == 0 {
			return nil
		}
		if err := end(ctx, members, send); err != nil {
			return err
		}
	}
}

// end signals some processes and waits for them.
func end(ctx context.Context, members []procfs.Stat, send func(*procfs.Pidfd, context.Context) error) error {
	var fds []*procfs.Pidfd
	defer func() {
		for _, p := range fds {
			p.Close()
		}
	}()
	for _, m := range members {
		p, err := procfs.OpenPidfd(m.PID, m.Start)
		if err == nil {
			fds = append(fds, p)
			err = send(p, ctx)
		}
		if err != nil && !errors.Is(err, procfs.ErrNoProcess) {
			return err
		}
	}
	for _, p := range fds {
		if err := p.Wait(ctx); err != nil {
			return fmt.Errorf("pid %d did not end: %w", p.PID(), err)
		}
	}
	return nil
}
