package node

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/acl"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// sayNothing connects, prints the outcome, and waits to be killed.
func (p *probe) sayNothing() {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: p.Socket})
	}
	if err != nil {
		fmt.Println(unix.ErrnoName(errnoOf(err)))
		return
	}
	fmt.Println("connected")
	_ = unix.Pause() // A signal ends it.
}

// silent is a process that connected to MPS and says nothing.
type silent struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// connect starts one as a person, and returns how it went.
func (n *mpsNode) connect(t *testing.T, who person, wrapper ...string) (*silent, string) {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	cmd := who.command(t.Context(), append(wrapper, program)...)
	cmd.Env = append(cmd.Env, probeEnv+"="+n.silence(t))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &silent{cmd: cmd, ended: make(chan struct{})}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Errorf("it prints %q: %v", line, err)
	}
	go func() {
		defer close(s.ended)
		_ = cmd.Wait() // It may be stopped.
	}()
	t.Cleanup(s.end)
	return s, strings.TrimSpace(line)
}

// end ends it, if it was not stopped.
func (s *silent) end() {
	_ = s.cmd.Process.Kill() // It may have ended.
	<-s.ended
}

// awaitStopped waits until it was stopped.
func (s *silent) awaitStopped(t *testing.T) {
	t.Helper()
	select {
	case <-s.ended:
	case <-soon(t).Done():
		t.Fatal("it was not stopped")
	}
}

// mpsNode is a node with MPS on GPU 2.
type mpsNode struct {
	*harness.Node
	socket string // of the tenants
	who    [columns]person
}

// silence is the probe of a process that says nothing.
func (n *mpsNode) silence(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(probe{Socket: n.socket, Silent: true})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const mpsSpec = `version: v1
node: {enforce: on}
gpus: [{select: {index: 2}, mode: mps}]
tenants:
  - name: red
    members: {users: [member]}
    grants: [{name: join, mps: {share: 30%, gpu_memory: 1GiB}}]
  - name: blue
    members: {groups: [blue]}
    grants: [{name: join, mps: {share: 30%, gpu_memory: 1GiB}, gpus: {index: 2}}]
  - name: green
    members: {users: [colleague]}
    grants: [{name: whole, exclusive: 1}]
`

// newMPSNode is a node that is observed in this interval when nothing happens.
func newMPSNode(t *testing.T, interval string) *mpsNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	n := &mpsNode{Node: inDirectory(t), who: callers()}
	directory(t, n.Node, peopleDirectory())
	n.Settings["converge_interval"] = interval
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	open(t, n.Dir)
	apply(t, n.Node, mpsSpec)
	r := n.CLI(soon(t), "run", "-q", "-t", "red", "--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY")
	if r.Code != 0 {
		t.Fatalf("no lease: %s\n%s", r.Err, daemonLog(n.Node))
	}
	n.socket = filepath.Join(strings.TrimSpace(r.Out), "control")
	return n
}

// Members of tenants with a grant of MPS on the GPU reach its socket, and no other user; what is changed by hand is restored.
func TestWhoReachesMPS(t *testing.T) {
	t.Parallel()
	n := newMPSNode(t, "1s")
	events := follow(t, n.Node)
	for who, want := range map[int]string{
		withoutRole: "EACCES", namespaceRoot: "EACCES", colleague: "EACCES", adminGroup: "EACCES", observerGroup: "EACCES", member: "connected", anothers: "connected",
	} {
		t.Run(columnNames()[who], func(t *testing.T) {
			if out, err := n.who[who].command(soon(t), "true").CombinedOutput(); n.who[who].inside && err != nil {
				t.Skipf("needs user namespaces: %s", out)
			}
			s, got := n.connect(t, n.who[who])
			s.end()
			if got != want {
				t.Errorf("it gets %s, want %s", got, want)
			}
		})
	}
	tenants := filepath.Dir(n.socket)
	pipe := filepath.Join(filepath.Dir(tenants), "p")
	for name, path := range map[string]string{
		"the tenants' directory": tenants, "the privileged directory": pipe, "the log FIFO": filepath.Join(pipe, "log"), "the lock file": filepath.Join(pipe, "control_lock"),
	} {
		was, err := acl.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := harness.Await(soon(t), 50*time.Millisecond, path+" stays open to all", func() (bool, error) {
			is, err := acl.Read(path)
			return is.Equal(was), err
		}); err != nil {
			t.Error(err)
		}
		events.awaitText(t, "drift.corrected", "MPS of GPU 2: "+name)
	}
	// A grant that is removed closes the socket to its members.
	apply(t, n.Node, replaced(t, mpsSpec, "members: {groups: [blue]}", "members: {users: [colleague]}"))
	for who, want := range map[int]string{colleague: "connected", anothers: "EACCES"} {
		s, got := n.connect(t, n.who[who])
		s.end()
		if got != want {
			t.Errorf("after the change %s: %s, want %s", columnNames()[who], got, want)
		}
	}
}

// A user of no tenant reaches the socket as long as a lease has a process of theirs, without waiting for an observation.
func TestTheUserOfALeaseReachesMPS(t *testing.T) {
	t.Parallel()
	n := newMPSNode(t, "1h")
	other := n.who[withoutRole]
	reaches := func(want string) {
		t.Helper()
		if err := harness.Await(soon(t), 50*time.Millisecond, "the user of a lease does not get "+want, func() (bool, error) {
			s, got := n.connect(t, other)
			s.end()
			return got == want, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	path, dir := newCgroup(t)
	for _, by := range []string{"--pid", "--cgroup"} { // The lease of a cgroup is the user's who attaches it, not of its processes.
		reaches("EACCES")
		o := startOutside(t, n.Node, uint32(other.uid), "sleep", "60")
		what := strconv.Itoa(o.pid())
		if by == "--cgroup" {
			enter(t, dir, o.pid())
			what = path
		}
		id := attach(t, n.Node, by, what, "-t", "red", "--grant", "join")
		reaches("connected")
		if err := o.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		awaitStatus(t, n.Node, "the lease outlives its process", func(s *api.Status) bool { return leaseByID(s, id) == nil })
		reaches("EACCES")
	}
}

// awaitText waits for an event of a kind with a text.
func (e *eventStream) awaitText(t *testing.T, kind, text string) {
	t.Helper()
	for ctx := soon(t); ; {
		e.mu.Lock()
		more, last := e.more, ""
		for _, x := range e.events {
			if x.Kind != kind {
				continue
			}
			if last = x.Message; strings.Contains(last, text) {
				e.mu.Unlock()
				return
			}
		}
		e.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			t.Errorf("no event %s with %q, the last one is %q", kind, text, last)
			return
		}
	}
}

// A member who connects and says nothing is named and stopped, alone, and a lease that starts meanwhile starts.
func TestASilentPeerOfMPSIsStopped(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := newMPSNode(t, "1s")
	events := follow(t, n.Node)
	running := n.who[member].command(
		t.Context(), filepath.Join(n.Bin, "gpushare"), "run", "-q", "--", "sh", "-c", "echo runs; exec sleep 600",
	)
	running.Env = append(running.Env, "GPUSHARE_SOCKET="+n.Socket())
	job, err := n.Spawn(running)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "runs"); err != nil {
		t.Fatal(err)
	}
	for name, wrapper := range map[string][]string{"of the host": nil, "in a network namespace": {"unshare", "--user", "--net", "--map-root-user"}} {
		t.Run(name, func(t *testing.T) {
			s, got := n.connect(t, n.who[member], wrapper...)
			if got != "connected" {
				t.Fatalf("a member cannot connect: %s", got)
			}
			if err := n.Client().Reload(soon(t)); err != nil { // An observation that has no greeting.
				t.Fatal(err)
			}
			if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--", "true"); r.Code != 0 {
				t.Errorf("a lease that starts meanwhile: %s", r.Err)
			}
			s.awaitStopped(t)
			pid := fmt.Sprintf("GPU 2: pid %d (probe) of user member", s.cmd.Process.Pid)
			events.awaitText(t, "mps.blocked", pid)
			events.awaitText(t, "mps.blocked.stopped", pid)
			awaitStatus(
				t, n.Node, "the condition stays",
				func(s *api.Status) bool { return !hasCondition(s, "mps-blocked", "") && !hasCondition(s, "mps", "") },
			)
		})
	}
	t.Run("in a lease", func(t *testing.T) {
		program, err := prober()
		if err != nil {
			t.Fatal(err)
		}
		cmd := n.who[member].command(
			t.Context(), filepath.Join(n.Bin, "gpushare"), "run", "-q", "--", "sh", "-c", "echo lease=$GPUSHARE_LEASE.; exec "+program,
		)
		cmd.Env = append(cmd.Env, "GPUSHARE_SOCKET="+n.Socket(), probeEnv+"="+n.silence(t))
		job, err := n.Spawn(cmd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		if err := job.AwaitLine(soon(t), "connected"); err != nil {
			t.Fatal(err)
		}
		events.awaitText(t, "mps.blocked", "in lease "+leaseOf(job))
		events.awaitText(t, "mps.blocked.stopped", "in lease "+leaseOf(job))
	})
	t.Run("of root", func(t *testing.T) {
		s, got := n.connect(t, person{})
		if got != "connected" {
			t.Fatalf("root cannot connect: %s", got)
		}
		awaitStatus(t, n.Node, "root's process is not named", func(now *api.Status) bool {
			return hasCondition(now, "mps-blocked", fmt.Sprintf("pid %d (", s.cmd.Process.Pid)) &&
				hasCondition(now, "mps-blocked", "it belongs to root")
		})
		select {
		case <-s.ended:
			t.Error("root's process was stopped")
		default:
		}
		s.end()
		awaitStatus(t, n.Node, "the condition stays", func(s *api.Status) bool { return !hasCondition(s, "mps-blocked", "") })
	})
	select {
	case <-job.Done():
		t.Error("a lease of the same member that does nothing was stopped")
	default:
	}
	// A control daemon that was kept long enough counts as down, and may be restarted: there is one more observation until it serves.
	awaitStatus(t, n.Node, "MPS does not serve again", func(s *api.Status) bool { return !hasCondition(s, "mps", "") })
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--", "true"); r.Code != 0 {
		t.Errorf("a lease after all: %s", r.Err)
	}
}

// MPS that a process has blocked, and that was not restarted because of its clients, serves as soon as that process has ended: it does
// not wait for the next observation.
func TestMPSServesWhenItIsNotBlockedAnyMore(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := newMPSNode(t, "1h")
	join(t, n.Node, "red")
	s, got := n.connect(t, person{})
	if got != "connected" {
		t.Fatalf("root cannot connect: %s", got)
	}
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n.Node, "MPS does not count as down", func(s *api.Status) bool { return hasCondition(s, "mps", "MPS is unresponsive") })
	s.end()
	awaitStatus(t, n.Node, "MPS does not serve again", func(s *api.Status) bool { return !hasCondition(s, "mps", "") })
	if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--", "true"); r.Code != 0 {
		t.Errorf("a lease after all: %s", r.Err)
	}
}
