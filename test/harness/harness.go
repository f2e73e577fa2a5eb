// Package harness runs the shipped programs on a virtual node: it starts and stops them, waits for their output, and
// cleans up. The demo, the tests of whole programs and the benchmark use it. It asserts nothing.
package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps/detached"
	"github.com/gpushare/gpushare/test/leftover"
)

// Node is one virtual node with the programs that run on it. Set the exported fields before Start.
type Node struct {
	Bin      string            // where the programs are
	File     string            // the node file
	Dir      string            // everything of this node; a new temporary directory if empty
	Settings map[string]string // more lines for gpushared.yaml
	Env      []string          // more environment for the daemon
	Before   []string          // a command that executes the daemon, whose command line follows; empty: none

	RealNodes bool // set by StartSim: the virtual GPUs are device nodes, which device rules apply to

	own    bool // Close removes Dir
	kept   bool // the supervisor ends this node if this process is killed
	sim    *process
	daemon *process
}

// process is a child process and its exit.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // after done
}

// spawn starts a child in a process group of its own: a Ctrl-C at the terminal reaches this process only, which then ends
// its children in order.
func spawn(cmd *exec.Cmd) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid // The leader of a session leads its group already.
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", filepath.Base(cmd.Path), err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := leftover.Child(cmd.Process.Pid); err != nil {
		p.end(syscall.SIGKILL, time.Second)
		return nil, err
	}
	return p, nil
}

// keep lets the supervisor end this node when this process is killed, and Close is not called.
func (n *Node) keep() error {
	if err := n.link(); err != nil {
		return err
	}
	if n.kept {
		return nil
	}
	p := leftover.Place{Dir: n.Dir, Remove: n.own}
	if h, err := cgroup.FindHierarchy(); err == nil {
		p.Cgroup = filepath.Join(h.Mount, n.Subtree())
	}
	if err := leftover.Keep(p); err != nil {
		return err
	}
	n.kept = true
	return nil
}

// link gives the programs a path without a space: tests write it in commands of a shell.
func (n *Node) link() error {
	if !strings.Contains(n.Bin, " ") || strings.Contains(n.Dir, " ") {
		return nil
	}
	bin, err := filepath.Abs(n.Bin)
	if err != nil {
		return fmt.Errorf("cannot find the programs: %w", err)
	}
	link := filepath.Join(n.Dir, "bin")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot link the programs: %w", err)
	}
	if err := os.Symlink(bin, link); err != nil {
		return fmt.Errorf("cannot link the programs: %w", err)
	}
	n.Bin = link
	return nil
}

func (p *process) end(sig syscall.Signal, wait time.Duration) {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(wait):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Root is the host root of the virtual node.
func (n *Node) Root() string { return filepath.Join(n.Dir, "root") }

// Socket is the path of the daemon's socket.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "run", "gpushare.sock") }

// Client is a client of the daemon.
func (n *Node) Client() *client.Client { return &client.Client{Socket: n.Socket()} }

// Start starts the virtual GPUs and then the daemon.
func (n *Node) Start(ctx context.Context) error {
	if n.Dir == "" {
		dir, err := os.MkdirTemp("", "gpushare-")
		if err != nil {
			return fmt.Errorf("cannot create a directory: %w", err)
		}
		n.Dir, n.own = dir, true
		// Tenants with other uids need access to the virtual devices below.
		if err := os.Chmod(dir, 0o755); err != nil {
			return fmt.Errorf("cannot change the mode of the directory: %w", err)
		}
	}
	if err := n.StartSim(ctx); err != nil {
		return err
	}
	if err := n.mountBPF(); err != nil {
		return err
	}
	return n.StartDaemon(ctx)
}

// StartSim starts the virtual GPUs and waits until they are ready.
func (n *Node) StartSim(ctx context.Context) error {
	if err := n.keep(); err != nil {
		return err
	}
	args := []string{"serve", "--node", n.File, "--root", n.Root()}
	if n.RealNodes = canMknod(n.Dir); n.RealNodes {
		args = append(args, "--mknod")
	}
	cmd := exec.Command(n.program("gpusim"), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("cannot create a pipe: %w", err)
	}
	p, err := spawn(cmd)
	if err != nil {
		return err
	}
	n.sim = p
	ready := make(chan bool, 2) // its readiness and its exit
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			if strings.HasPrefix(s.Text(), "ready") {
				ready <- true
			}
		}
		ready <- false
	}()
	select {
	case ok := <-ready:
		if !ok {
			return fmt.Errorf("gpusim ended: %s", strings.TrimSpace(stderr.String()))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("gpusim did not get ready: %w", ctx.Err())
	}
}

// StartDaemon starts the daemon and waits for its READY=1.
func (n *Node) StartDaemon(ctx context.Context) error {
	if err := n.keep(); err != nil {
		return err
	}
	settings, err := n.writeSettings()
	if err != nil {
		return err
	}
	notify, err := listenNotify(filepath.Join(n.Dir, "notify"))
	if err != nil {
		return err
	}
	defer notify.Close()
	argv := append(slices.Clone(n.Before), n.program("gpushared"), "--settings", settings)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), n.Env...), "NOTIFY_SOCKET="+filepath.Join(n.Dir, "notify"))
	// A file and not a pipe: processes that outlive the daemon have it open too, and Wait would wait for them.
	log, err := os.OpenFile(n.LogFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("cannot open the daemon's log: %w", err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if n.daemon, err = spawn(cmd); err != nil {
		return err
	}
	ready := make(chan error, 1)
	go func() { ready <- awaitReady(notify) }()
	select {
	case err := <-ready:
		return err
	case <-n.daemon.done:
		return fmt.Errorf("gpushared ended before it was ready: %w\n%s", n.daemon.err, n.logTail())
	case <-ctx.Done():
		return fmt.Errorf("gpushared did not get ready: %w", ctx.Err())
	}
}

// Subtree is the part of the cgroup hierarchy of this node. Directories of parallel tests may have the same base name.
func (n *Node) Subtree() string {
	h := fnv.New32a()
	h.Write([]byte(n.Dir))
	return fmt.Sprintf("gpushare-%s-%08x", strings.TrimPrefix(filepath.Base(n.Dir), "gpushare-"), h.Sum32())
}

// dropSubtree kills the processes in it and removes it.
func (n *Node) dropSubtree() error {
	h, err := cgroup.FindHierarchy()
	if err != nil || !h.Exists(n.Subtree()) {
		return nil
	}
	t, err := cgroup.NewTree(cgroup.TreeOptions{Subtree: n.Subtree()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return t.Destroy(ctx)
}

// RecordDir is where the kernel's record of the processes of leases is pinned.
func (n *Node) RecordDir() string { return filepath.Join(n.bpf(), "gpushare", n.Subtree()) }

func (n *Node) bpf() string { return filepath.Join(n.Root(), "sys/fs/bpf") }

// mountBPF mounts the BPF file system of the node, as systemd does on a host. Without root there is none.
func (n *Node) mountBPF() error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := os.MkdirAll(n.bpf(), 0o755); err != nil {
		return fmt.Errorf("cannot create a directory: %w", err)
	}
	if err := unix.Mount("bpf", n.bpf(), "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil &&
		!errors.Is(err, unix.EPERM) {
		return fmt.Errorf("cannot mount the BPF file system: %w", err)
	}
	return nil
}

// unmountBPF ends the record, too.
func (n *Node) unmountBPF() error {
	err := unix.Unmount(n.bpf(), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
		return nil // None is mounted.
	}
	return err
}

// LogFile is the log of the daemon, over all its runs.
func (n *Node) LogFile() string { return filepath.Join(n.Dir, "gpushared.log") }

func (n *Node) logTail() string {
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}

func (n *Node) writeSettings() (string, error) {
	all := map[string]string{
		"host_root":   n.Root(),
		"state_dir":   filepath.Join(n.Dir, "state"),
		"run_dir":     filepath.Join(n.Dir, "run"),
		"cdi_dir":     filepath.Join(n.Dir, "cdi"),
		"systemd":     "off",
		"cgroup_root": n.Subtree(),
		// With many more tests than CPUs a virtual driver may wait for seconds, after which a GPU counts as stuck.
		"driver_read_timeout": "20s",
	}
	for k, v := range n.Settings {
		all[k] = v
	}
	var b strings.Builder
	for k, v := range all {
		fmt.Fprintf(&b, "%s: %q\n", k, v)
	}
	file := filepath.Join(n.Dir, "gpushared.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return "", fmt.Errorf("cannot write the settings: %w", err)
	}
	return file, nil
}

func listenNotify(path string) (*net.UnixConn, error) {
	_ = os.Remove(path) // Of an earlier start, if it exists.
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen for the daemon's notices: %w", err)
	}
	return c, nil
}

func awaitReady(c *net.UnixConn) error {
	buf := make([]byte, 4096)
	for {
		k, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("cannot read the daemon's notices: %w", err)
		}
		for _, line := range strings.Split(string(buf[:k]), "\n") {
			if line == "READY=1" {
				return nil
			}
		}
	}
}

// DaemonPID is the pid of the daemon.
func (n *Node) DaemonPID() int { return n.daemon.cmd.Process.Pid }

// SimPID is the pid of gpusim.
func (n *Node) SimPID() int { return n.sim.cmd.Process.Pid }

// DaemonDone is closed when the daemon has exited.
func (n *Node) DaemonDone() <-chan struct{} { return n.daemon.done }

// DaemonExit is its exit code; only after DaemonDone.
func (n *Node) DaemonExit() int { return n.daemon.cmd.ProcessState.ExitCode() }

// KillDaemon ends the daemon with SIGKILL and waits for its end.
func (n *Node) KillDaemon() { n.daemon.end(syscall.SIGKILL, time.Second) }

// StopDaemon ends the daemon as systemd would.
func (n *Node) StopDaemon() { n.daemon.end(syscall.SIGTERM, 10*time.Second) }

// Close stops all programs of this node and removes its directory if Start created it.
func (n *Node) Close() error {
	var errs []error
	if n.daemon != nil {
		n.daemon.end(syscall.SIGTERM, 10*time.Second)
	}
	errs = append(errs, n.endThaw(), n.endServices(), n.dropSubtree(), n.unmountBPF())
	if n.sim != nil {
		n.sim.end(syscall.SIGTERM, 5*time.Second)
	}
	if n.own {
		errs = append(errs, os.RemoveAll(n.Dir))
	}
	if n.kept {
		n.kept = false
		errs = append(errs, leftover.Drop(n.Dir))
	}
	return errors.Join(errs...)
}

// ThawPID is the pid of this node's thaw watchdog, which outlives the daemon; 0 when none runs. It is found by its arguments,
// because no file has its pid.
func (n *Node) ThawPID() int {
	all, err := procfs.All()
	if err != nil {
		return 0
	}
	for _, s := range all {
		if s.Name != "gpushare-thaw" {
			continue // Reading the arguments of other processes may hang.
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.PID))
		if err != nil {
			continue // it has ended
		}
		if slices.Contains(strings.Split(string(b), "\x00"), filepath.Join(n.Dir, "run")) {
			return s.PID
		}
	}
	return 0
}

// endThaw stops the thaw watchdog.
func (n *Node) endThaw() error {
	pid := n.ThawPID()
	if pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("cannot end gpushare-thaw: %w", err)
	}
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 5000)
	return nil
}

// endServices stops the services of the daemon that outlive it, such as MPS.
func (n *Node) endServices() error {
	dir := filepath.Join(n.Dir, "run", "units")
	records, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return fmt.Errorf("cannot list the services: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d := &detached.Services{Dir: dir}
	var errs []error
	for _, r := range records {
		errs = append(errs, d.StopService(ctx, strings.TrimSuffix(filepath.Base(r), ".json"), time.Second))
	}
	return errors.Join(errs...)
}

func (n *Node) program(name string) string { return filepath.Join(n.Bin, name) }

// Environ is the environment of a shell on this node.
func (n *Node) Environ() []string {
	return append(os.Environ(), "GPUSHARE_SOCKET="+n.Socket(), "GPUSIM_ROOT="+n.Root(),
		"PATH="+n.Bin+":"+os.Getenv("PATH"))
}

// Result is the output and the exit code of a command.
type Result struct {
	Code         int
	Out, Err     string
	Milliseconds int64
}

// CLI runs gpushare and waits for it.
func (n *Node) CLI(ctx context.Context, args ...string) Result {
	return n.CLIIn(ctx, "", args...)
}

// CLIIn runs gpushare with a standard input.
func (n *Node) CLIIn(ctx context.Context, stdin string, args ...string) Result {
	cmd := exec.CommandContext(ctx, n.program("gpushare"), args...)
	var out, errb bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = strings.NewReader(stdin), &out, &errb, n.Environ()
	began := time.Now()
	err := cmd.Run()
	r := Result{Out: out.String(), Err: errb.String(), Milliseconds: time.Since(began).Milliseconds()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	case err != nil:
		r.Code, r.Err = -1, err.Error()
	}
	return r
}

// Ctl runs gpusim ctl against this node and decodes its JSON into out, unless nil.
func (n *Node) Ctl(ctx context.Context, out any, args ...string) error {
	cmd := exec.CommandContext(ctx, n.program("gpusim"), append([]string{"ctl", "--root", n.Root()}, args...)...)
	b, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return fmt.Errorf("cannot control the virtual node: %w", err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("cannot read the output of gpusim ctl: %w", err)
	}
	return nil
}

// Job is a command that runs under gpushare run.
type Job struct {
	*process
	lines *lastLines
}

// PID is the pid of the job: gpushare run executes the command.
func (j *Job) PID() int { return j.cmd.Process.Pid }

// Done is closed when the job has ended.
func (j *Job) Done() <-chan struct{} { return j.done }

// Code is its exit code, or -signal; only after Done.
func (j *Job) Code() int {
	if ws, ok := j.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return -int(ws.Signal())
	}
	return j.cmd.ProcessState.ExitCode()
}

// Output is the end of its output.
func (j *Job) Output() string { return j.lines.String() }

// AwaitLine waits until its output contains text.
func (j *Job) AwaitLine(ctx context.Context, text string) error {
	for {
		changed := j.lines.changed()
		if strings.Contains(j.lines.String(), text) {
			return nil
		}
		select {
		case <-changed:
		case <-j.done:
			if strings.Contains(j.lines.String(), text) {
				return nil
			}
			return fmt.Errorf("it ended before it printed %q: %s", text, j.Output())
		case <-ctx.Done():
			return fmt.Errorf("it did not print %q: %w: %s", text, ctx.Err(), j.Output())
		}
	}
}

// Stop stops the job with SIGTERM, then SIGKILL.
func (j *Job) Stop() { j.end(syscall.SIGTERM, 5*time.Second) }

// Kill kills the job.
func (j *Job) Kill() { j.end(syscall.SIGKILL, time.Second) }

// Run starts gpushare run with these arguments.
func (n *Node) Run(args ...string) (*Job, error) {
	cmd := exec.Command(n.program("gpushare"), append([]string{"run"}, args...)...)
	cmd.Env = n.Environ()
	return n.Spawn(cmd)
}

// RunTo is Run for a command whose whole output is of interest: it is written to out, too.
func (n *Node) RunTo(out io.Writer, args ...string) (*Job, error) {
	cmd := exec.Command(n.program("gpushare"), append([]string{"run"}, args...)...)
	cmd.Env = n.Environ()
	return n.spawnTo(cmd, out)
}

// Spawn starts any command as a job. It leaves the command's environment as it is.
func (n *Node) Spawn(cmd *exec.Cmd) (*Job, error) { return n.spawnTo(cmd, io.Discard) }

func (n *Node) spawnTo(cmd *exec.Cmd, out io.Writer) (*Job, error) {
	l := &lastLines{}
	all := io.MultiWriter(l, out)
	cmd.Stdout, cmd.Stderr = all, all
	p, err := spawn(cmd)
	if err != nil {
		return nil, err
	}
	return &Job{p, l}, nil
}

// RunOn starts gpushare run in a session of its own on a terminal.
func (n *Node) RunOn(tty *os.File, args ...string) (*Job, error) {
	return n.OnTerminal(tty, append([]string{"run"}, args...)...)
}

// OnTerminal starts gpushare in a session of its own on a terminal.
func (n *Node) OnTerminal(tty *os.File, args ...string) (*Job, error) {
	cmd := exec.Command(n.program("gpushare"), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = tty, tty, tty, n.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p, err := spawn(cmd)
	if err != nil {
		return nil, err
	}
	return &Job{p, &lastLines{}}, nil
}

// Burn is the argument list of a virtual CUDA program.
func (n *Node) Burn(args ...string) []string {
	return append([]string{n.program("gpusim-burn")}, args...)
}

// Await polls a condition of another process that sends no event, until it is true or ctx ends.
func Await(ctx context.Context, every time.Duration, what string, condition func() (bool, error)) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		ok, err := condition()
		if ok && err == nil {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s: %w", what, ctx.Err()), err)
		}
	}
}

// Lease finds a lease of a status by tenant and grant.
func Lease(s *api.Status, tenant, grant string) *api.Lease {
	for i := range s.Leases {
		if l := &s.Leases[i]; l.Tenant == tenant && l.Grant == grant {
			return l
		}
	}
	return nil
}

// lastLines keeps the end of the text that is written to it.
type lastLines struct {
	mu   sync.Mutex // guards the fields below
	b    []byte
	wake chan struct{}
}

const keepOutput = 64 << 10

// Write keeps the last 64 KiB.
func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	if over := len(l.b) - keepOutput; over > 0 {
		l.b = append([]byte(nil), l.b[over:]...)
	}
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
	return len(p), nil
}

// String returns the kept text.
func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

// changed returns a channel that is closed at the next write.
func (l *lastLines) changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}
