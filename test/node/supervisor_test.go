package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// supervisorsOf lists the supervisors of a node.
func supervisorsOf(t *testing.T, n *harness.Node) []procfs.Stat {
	t.Helper()
	all, err := procfs.All()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s procfs.Stat) bool {
		if s.Name != "gpushare-start" {
			return true // Reading the arguments of other processes may hang.
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.PID))
		args := strings.Split(string(b), "\x00")
		return err != nil || s.Dead() || len(args) < 3 || args[1] != "--supervise" || !strings.HasPrefix(args[2], n.Dir+"/")
	})
}

// awaitNoSupervisor waits until no supervisor of the node is left.
func awaitNoSupervisor(t *testing.T, n *harness.Node) {
	t.Helper()
	err := harness.Await(soon(t), 10*time.Millisecond, "supervisors are left", func() (bool, error) {
		return len(supervisorsOf(t, n)) == 0, nil
	})
	if err != nil {
		t.Fatalf("%v: %d", err, len(supervisorsOf(t, n)))
	}
}

// heldCommand prints, waits until its named pipe is opened, prints again and exits with a code of its own.
func heldCommand(fifo string, i int) string {
	return fmt.Sprintf("echo before %d; cat %s; echo after %d; exit %d", i, fifo, i, i%50)
}

// eventually is a context for what many processes do at once.
func eventually(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// openFIFO lets all readers of a FIFO go on, until a condition holds.
func openFIFO(t *testing.T, fifo, what string, done func() bool) {
	t.Helper()
	err := harness.Await(eventually(t), 10*time.Millisecond, what, func() (bool, error) {
		// Without a reader it fails with ENXIO. One that opens it later is let go by the next round.
		if f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
		return done(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// keepOutputs starts processes outside of all leases that keep the standard output of the processes open, as cmd's user.
func keepOutputs(t *testing.T, shell func(script string) *exec.Cmd, pids []int) (outsiders []*os.Process) {
	t.Helper()
	var script strings.Builder
	for _, pid := range pids {
		fmt.Fprintf(&script, "sleep 600 >/proc/%d/fd/1 & echo $!\n", pid)
	}
	script.WriteString("exec >&-; wait\n")
	cmd := shell(script.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	var held bytes.Buffer
	if _, err := held.ReadFrom(out); err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(held.String()) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		outsiders = append(outsiders, p)
	}
	if len(outsiders) != len(pids) {
		t.Fatalf("%d of %d outputs are held", len(outsiders), len(pids))
	}
	return outsiders
}

// endedLeases are the results of ended leases by id.
func endedLeases(t *testing.T, n *harness.Node) map[string]api.Lease {
	t.Helper()
	c := n.Client()
	defer c.Close()
	all, err := c.Leases(soon(t), true)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]api.Lease{}
	for i := range all {
		if all[i].State == api.LeaseEnded {
			out[all[i].ID] = all[i]
		}
	}
	return out
}

// checkResults compares the results and outputs of held commands.
func checkResults(t *testing.T, n *harness.Node, ids []string) {
	t.Helper()
	err := harness.Await(eventually(t), 20*time.Millisecond, "not all leases end", func() (bool, error) {
		ended := endedLeases(t, n)
		return !slices.ContainsFunc(ids, func(id string) bool { _, ok := ended[id]; return !ok }), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := endedLeases(t, n)
	for i, id := range ids {
		l := ended[id]
		if l.ExitCode == nil || *l.ExitCode != i%50 {
			t.Errorf("%s, the %d. command, ended with %q", id, i, l.Result)
		}
		if r := n.CLI(soon(t), "lease", "logs", id); r.Out != fmt.Sprintf("before %d\nafter %d\n", i, i) {
			t.Errorf("%s, the %d. command, printed %q%s", id, i, r.Out, r.Err)
		}
	}
}

// A command's output can be handed to a process outside of its lease. The supervisor, a process of root, ends with the lease all the
// same, and so it does while the daemon does not run.
func TestOutputOpenOutside(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(map[bool]string{false: "with the daemon", true: "the daemon is killed"}[killed], func(t *testing.T) {
			n := start(t, quick)
			apply(t, n, shared)
			fifo := filepath.Join(t.TempDir(), "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			var ids []string
			var pids []int
			for i := range 4 {
				id := detach(t, n, heldCommand(fifo, i), "-t", "red", "--grant", "part")
				awaitLogs(t, n, id, fmt.Sprintf("before %d\n", i))
				ids, pids = append(ids, id), append(pids, leaseByID(status(t, n), id).PID)
			}
			outsiders := keepOutputs(t, func(script string) *exec.Cmd { return exec.CommandContext(t.Context(), "sh", "-c", script) }, pids)
			if got := len(supervisorsOf(t, n)); got != len(ids) {
				t.Errorf("%d supervisors run, want %d", got, len(ids))
			}
			if killed {
				n.KillDaemon()
			}
			openFIFO(t, fifo, "supervisors are left", func() bool { return len(supervisorsOf(t, n)) == 0 })
			if killed {
				if err := n.StartDaemon(soon(t)); err != nil {
					t.Fatal(err)
				}
			}
			checkResults(t, n, ids)
			for _, p := range outsiders {
				if err := p.Signal(syscall.Signal(0)); err != nil {
					t.Errorf("an outsider has ended: %v", err)
				}
			}
		})
	}
}

// A user hands the outputs of as many commands as they may have to processes that stay. There are never more supervisors than
// leases; all are in the cgroups of their leases, without capabilities; and none is left when the leases have ended.
func TestSupervisorsOfAUserAreBounded(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(map[bool]string{false: "with the daemon", true: "the daemon is killed"}[killed], func(t *testing.T) {
			b := newAttackFixture(t)
			most := 128
			if killed {
				most = 100
			}
			held := outputsOutside(t)
			fifo := filepath.Join(held.dir, "fifo")
			if err := errors.Join(syscall.Mkfifo(fifo, 0o666), os.Chmod(fifo, 0o666)); err != nil {
				t.Fatal(err)
			}
			ids := b.detachMany(t, most, func(i int) string { return held.hand + heldCommand(fifo, i) })
			inside := b.insideOf(t, ids)
			outputs := held.await(t, most)
			if !killed {
				b.refusesOneMore(t)
			}
			supervisors := supervisorsOf(t, b.Node)
			if len(supervisors) != most {
				t.Errorf("%d supervisors run for %d leases", len(supervisors), most)
			}
			for _, s := range supervisors {
				b.checkSupervisor(t, s.PID, inside)
			}
			if killed {
				b.KillDaemon()
			}
			openFIFO(t, fifo, "supervisors are left", func() bool { return len(supervisorsOf(t, b.Node)) == 0 })
			if killed {
				if err := b.StartDaemon(soon(t)); err != nil {
					t.Fatal(err)
				}
			}
			checkResults(t, b.Node, ids)
			for _, f := range outputs {
				if _, err := f.WriteString("after the end\n"); !errors.Is(err, unix.EPIPE) {
					t.Errorf("writing to the output of a lease that has ended: %v", err)
				}
			}
			if left := supervisorsOf(t, b.Node); len(left) > 0 {
				t.Errorf("%d supervisors are left", len(left))
			}
		})
	}
}

// detachMany starts detached commands of the member, some at once, and returns their ids in order.
func (b *attackFixture) detachMany(t *testing.T, n int, script func(i int) string) []string {
	t.Helper()
	ids := make([]string, n)
	var starting sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range n {
		slots <- struct{}{}
		starting.Go(func() {
			defer func() { <-slots }()
			cmd := b.as(t, member, "run", "-q", "--detach", "--", "sh", "-c", script(i))
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("command %d was not started: %v: %s", i, err, errs.String())
			}
			ids[i] = strings.TrimSpace(string(out))
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return ids
}

// insideOf are the cgroups of leases, which contain those of their processes.
func (b *attackFixture) insideOf(t *testing.T, ids []string) map[string]bool {
	t.Helper()
	s, inside := status(t, b.Node), map[string]bool{}
	for _, id := range ids {
		l := leaseByID(s, id)
		if l == nil || l.Isolation.Cgroup == "" {
			t.Fatalf("lease %s is %+v", id, l)
		}
		inside[path.Dir(l.Isolation.Cgroup)] = true
	}
	return inside
}

// heldOutputs are the outputs of commands in this process, which is in no lease.
type heldOutputs struct {
	dir, hand string // a directory for all users, and the command that hands its output over
	received  chan *os.File
}

// outputsOutside receives the standard outputs that commands send.
func outputsOutside(t *testing.T) *heldOutputs {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "held")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(socket, 0o666)); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(probe{Socket: socket, Hands: true})
	if err != nil {
		t.Fatal(err)
	}
	h := &heldOutputs{dir: dir, hand: "env '" + probeEnv + "=" + string(text) + "' " + program + "; ", received: make(chan *os.File, 256)}
	go func() { // ends with the listener
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			oob := make([]byte, unix.CmsgSpace(4))
			_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
			c.Close()
			messages, perr := unix.ParseSocketControlMessage(oob[:n])
			if err != nil || perr != nil || len(messages) != 1 {
				continue // One that is missing is reported by await.
			}
			if fds, err := unix.ParseUnixRights(&messages[0]); err == nil {
				h.received <- os.NewFile(uintptr(fds[0]), "the output of a command")
			}
		}
	}()
	return h
}

// await returns the outputs when all have arrived.
func (h *heldOutputs) await(t *testing.T, n int) []*os.File {
	t.Helper()
	var out []*os.File
	for ctx := eventually(t); len(out) < n; {
		select {
		case f := <-h.received:
			t.Cleanup(func() { f.Close() })
			out = append(out, f)
		case <-ctx.Done():
			t.Fatalf("%d of %d outputs were handed over", len(out), n)
		}
	}
	return out
}

// hand sends the standard output to another process.
func (p *probe) hand() {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.Socket, Net: "unix"})
	if err == nil {
		_, _, err = c.WriteMsgUnix([]byte("x"), unix.UnixRights(1), nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// refusesOneMore asserts that the user gets no further lease.
func (b *attackFixture) refusesOneMore(t *testing.T) {
	t.Helper()
	out, err := b.as(t, member, "run", "--detach", "--", "true").CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 125 || !strings.Contains(string(out), "128") {
		t.Errorf("one more ends with %v: %s", err, out)
	}
}

// checkSupervisor asserts that a supervisor is in the cgroup of its lease, next to the programs, and may do nothing there.
func (b *attackFixture) checkSupervisor(t *testing.T, pid int, inside map[string]bool) {
	t.Helper()
	at, err := procfs.Cgroup(pid)
	if err != nil || !inside[path.Dir(at)] || path.Base(at) == "run" {
		t.Errorf("a supervisor is in %s: %v", at, err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CapEff", "CapPrm", "CapInh", "CapAmb"} {
		if !strings.Contains(string(text), name+":\t0000000000000000\n") {
			t.Errorf("a supervisor has capabilities in %s:\n%s", name, text)
		}
	}
}

// Freezing a lease does not freeze its supervisor: what the program has printed is kept, and a result is recorded.
func TestSupervisorOfAFrozenLease(t *testing.T) {
	t.Parallel()
	b := newAttackFixture(t)
	id := strings.TrimSpace(b.detachMany(t, 1, func(int) string { return "echo ready; exec sleep 600" })[0])
	l := leaseByID(status(t, b.Node), id)
	dir := filepath.Join(filepath.Dir(b.top), l.Isolation.Cgroup)
	err := harness.Await(eventually(t), 10*time.Millisecond, "the program does not print", func() (bool, error) {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", l.PID))
		return string(name) == "sleep\n", err // The shell has printed then.
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	awaitLogs(t, b.Node, id, "ready\n")
	if err := syscall.Kill(l.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if ended := awaitResult(t, b.Node, id); ended.Result != "killed by SIGKILL" {
		t.Errorf("it ended as %q", ended.Result)
	}
	awaitNoSupervisor(t, b.Node)
}

// A supervisor that cannot end by itself, because something has stopped it, is ended with its lease.
func TestStoppedSupervisorEndsWithItsLease(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	id := detach(t, n, "echo ready; exec sleep 600", "-t", "red", "--grant", "part")
	awaitLogs(t, n, id, "ready\n")
	for _, s := range supervisorsOf(t, n) {
		if err := syscall.Kill(s.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
		t.Fatalf("stop exits with %d: %s", r.Code, r.Err)
	}
	awaitResult(t, n, id)
	awaitNoSupervisor(t, n)
}

// auditLogin is a process's audit login uid, empty where the kernel has none.
func auditLogin(pid string) string {
	b, err := os.ReadFile("/proc/" + pid + "/loginuid")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// A detached command has the audit login uid of its caller, although it is no descendant of the caller. The audit has it too.
func TestDetachedKeepsTheAuditLogin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("setting a login uid needs root")
	}
	if auditLogin("self") == "" {
		t.Skip("needs a kernel with login uids (CONFIG_AUDIT)")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	unset := strconv.FormatUint(1<<32-1, 10)
	if got := auditLogin(strconv.Itoa(n.DaemonPID())); got != unset {
		t.Skipf("needs a daemon without a login uid: it has %s", got)
	}
	for _, login := range []string{"4711", unset} {
		id := detachAs(t, n, login, "cat /proc/self/loginuid; echo")
		awaitResult(t, n, id)
		if r := n.CLI(soon(t), "lease", "logs", id); strings.TrimSpace(r.Out) != login {
			t.Errorf("a command of login uid %s has %q%s", login, r.Out, r.Err)
		}
		if got, want := auditedLogin(t, n, id), map[bool]string{true: login}[login != unset]; got != want {
			t.Errorf("the audit has login uid %q, want %q", got, want)
		}
	}
}

// detachAs starts a detached script from a process with an audit login uid.
func detachAs(t *testing.T, n *harness.Node, login, script string) string {
	t.Helper()
	set := "echo " + login + " >/proc/self/loginuid\n"
	if login == strconv.FormatUint(1<<32-1, 10) {
		set = ""
	}
	cmd := exec.CommandContext(
		soon(t),
		"sh",
		"-c",
		set+`exec "$@"`,
		"sh",
		filepath.Join(n.Bin, "gpushare"),
		"run",
		"-q",
		"--detach",
		"-t",
		"red",
		"--grant",
		"part",
		"--",
		"sh",
		"-c",
		script,
	)
	cmd.Env = n.Environ()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// auditedLogin is the login uid in the audit's line of the start of a lease.
func auditedLogin(t *testing.T, n *harness.Node, id string) string {
	t.Helper()
	c := n.Client()
	defer c.Close()
	r := n.CLI(soon(t), "audit", "--json")
	if r.Code != 0 {
		t.Fatalf("audit exits with %d: %s", r.Code, r.Err)
	}
	for line := range strings.Lines(r.Out) {
		var e map[string]any
		if json.Unmarshal([]byte(line), &e) == nil && e["lease"] == id && e["login_uid"] != nil {
			return fmt.Sprint(e["login_uid"])
		}
	}
	return ""
}
