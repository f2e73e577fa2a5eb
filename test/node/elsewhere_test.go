package node

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// pass sends an open descriptor to another process, or receives one and keeps it.
func (p *probe) pass() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	address := &net.UnixAddr{Name: p.Socket, Net: "unix"}
	if p.Keeps {
		c, err := net.DialUnix("unix", nil, address)
		fail(err)
		fail(c.SetDeadline(time.Now().Add(20 * time.Second)))
		b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := c.ReadMsgUnix(b, oob)
		fail(err)
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		fail(err)
		fds, err := unix.ParseUnixRights(&messages[0]) // It stays open.
		fail(err)
		fmt.Println("keeps it.")
		if n, _ := os.Stdin.Read(b); n > 0 { // It is to use it.
			_, err := unix.Mmap(fds[0], 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
			fail(err)
			fmt.Println("maps it.")
		}
		for {
			_ = unix.Pause() // Only a signal that ends it ends the wait.
		}
	}
	l, err := net.ListenUnix("unix", address)
	fail(err)
	fail(os.Chmod(p.Socket, 0o666))
	fail(l.SetDeadline(time.Now().Add(20 * time.Second)))
	fd, err := unix.Open(p.Sends, unix.O_RDONLY, 0)
	fail(err)
	fmt.Println("listens.")
	c, err := l.AcceptUnix()
	fail(err)
	_, _, err = c.WriteMsgUnix([]byte("x"), unix.UnixRights(fd), nil)
	fail(err)
}

// A lease passes its open GPU to a process in another lease, and ends. While that process has the GPU open, a condition names it and
// its lease, and the GPU is granted to no lease; it ends with its own lease.
func TestADevicePassedToAnotherLease(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)
	apply(t, n, closedLogins)
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open(t, dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	job := func(grant, says string, p probe) (*harness.Job, string) {
		t.Helper()
		p.Socket = filepath.Join(dir, "socket")
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		job, id := begin(t, n, "red", grant, become+"env '"+probeEnv+"="+string(text)+"' "+program)
		if err := job.AwaitLine(soon(t), says); err != nil {
			t.Fatalf("%v: %s", err, job.Output())
		}
		return job, id
	}
	openable(t, filepath.Join(n.Root(), "dev/nvidia3"))
	sender, sent := job("whole", "listens.", probe{Sends: filepath.Join(n.Root(), "dev/nvidia3")})
	receiver, id := job("part", "keeps it.", probe{Keeps: true})
	if code := awaitEnd(t, sender); code != 0 {
		t.Fatalf("the sender ends with %d: %s", code, sender.Output())
	}
	awaitStatus(t, n, "the end of the sender's lease", func(s *api.Status) bool { return leaseByID(s, sent) == nil })
	wantElsewhere(t, n, receiver.PID(), id)
}

// A user opens a GPU in a lease and passes it to a process of another user, which is in no lease: one that takes descriptors, as a display
// server does. While that has it open and does not use it, it is shown, it is not ended, and the GPU is granted. When it maps the device
// it uses it, and is ended.
func TestADevicePassedToAnotherUser(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)
	apply(t, n, closedLogins)
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open(t, dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	env := func(p probe) string {
		t.Helper()
		p.Socket = filepath.Join(dir, "socket")
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return probeEnv + "=" + string(text)
	}
	openable(t, filepath.Join(n.Root(), "dev/nvidia3"))
	sender, sent := begin(t, n, "red", "whole", become+"env '"+env(probe{Sends: filepath.Join(n.Root(), "dev/nvidia3")})+"' "+program)
	if err := sender.AwaitLine(soon(t), "listens."); err != nil {
		t.Fatalf("%v: %s", err, sender.Output())
	}
	const other = 64903
	victim := exec.Command(program)
	victim.Env, victim.Dir = []string{env(probe{Keeps: true})}, "/"
	victim.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	in, err := victim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	lines := bufio.NewReader(out)
	says := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); err != nil || line != want+"\n" {
			t.Errorf("it says %q: %v\n%s", line, err, daemonLog(n))
		}
	}
	says("keeps it.")
	if code := awaitEnd(t, sender); code != 0 {
		t.Fatalf("the sender ends with %d: %s", code, sender.Output())
	}
	awaitStatus(t, n, "the end of the sender's lease", func(s *api.Status) bool { return leaseByID(s, sent) == nil })
	who := fmt.Sprintf("pid %d (", victim.Process.Pid)
	awaitStatus(t, n, "no condition says what the process has", func(s *api.Status) bool {
		return hasCondition(s, "unattributed", who) &&
			hasCondition(s, "unattributed", "has GPU 3 open without a lease; it is not stopped for that")
	})
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 0 {
		t.Errorf("the GPU is not granted: %d: %s", r.Code, r.Err)
	}
	events := follow(t, n)
	if _, err := in.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	says("maps it.")
	go func() {
		_ = victim.Wait() // It is killed.
		close(ended)
	}()
	select {
	case <-ended:
	case <-soon(t).Done():
		t.Fatalf("it uses the GPU, and is not ended\n%s", daemonLog(n))
	}
	events.await(t, "gpu.unattributed.stopped", "")
}

// A process with a context on an exclusive GPU is in a lease of another place.
func TestAContextFromAnotherLease(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	process := contextOn(t, n, nobody, "--gpu", "3").Process.Pid
	_, id := begin(t, n, "red", "part", become+"sleep 600")
	leaf := filepath.Join(unified(t), leaseByID(status(t, n), id).Isolation.Cgroup)
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(process)), 0o600); err != nil {
		t.Fatal(err)
	}
	wantElsewhere(t, n, process, id)
}

// wantElsewhere checks that a process in a lease of another place keeps GPU 3 from leases until its own lease ends.
func wantElsewhere(t *testing.T, n *harness.Node, pid int, id string) {
	t.Helper()
	awaitStatus(t, n, "no condition names the process", func(s *api.Status) bool {
		return hasCondition(s, "unattributed", fmt.Sprintf("pid %d ", pid)) &&
			hasCondition(s, "unattributed", "uses GPU 3 from a lease of another place") &&
			hasCondition(s, "unattributed", "gpushare lease stop "+id) &&
			hasCondition(s, "unattributed", "no lease gets what it uses until it ends")
	})
	run := func(wait string) harness.Result {
		return n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--wait="+wait, "--", "true")
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 125 ||
		!strings.Contains(r.Err, "a process of no lease uses it") {
		t.Errorf("a run is answered with %d: %s", r.Code, r.Err)
	}
	if l := leaseByID(status(t, n), id); l == nil || l.State != api.LeaseRunning {
		t.Errorf("its lease is %+v\n%s", l, daemonLog(n))
	}
	if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
		t.Fatalf("its lease: %s", r.Err)
	}
	if r := run("20s"); r.Code != 0 {
		t.Errorf("after its end a run is answered with %d: %s", r.Code, r.Err)
	}
}
