package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/internal/sandbox"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// startFronted starts a node with members, whose requests the front reads.
func startFronted(t *testing.T, settings ...string) *harness.Node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the daemon of an ordinary user has no front")
	}
	for _, p := range []string{"setpriv", "unshare"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s (util-linux)", p)
		}
	}
	n := inDirectory(t)
	for i := 0; i < len(settings); i += 2 {
		n.Settings[settings[i]] = settings[i+1]
	}
	directory(t, n, peopleDirectory())
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, rolesSpec)
	return n
}

// frontPID is the front of a node. It waits until one runs that is not the one before.
func frontPID(t *testing.T, n *harness.Node, before int) (pid int) {
	t.Helper()
	err := harness.Await(soon(t), 20*time.Millisecond, "the front runs", func() (bool, error) {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", n.DaemonPID(), n.DaemonPID()))
		if err != nil {
			return false, err
		}
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.DaemonPID()))
		if err != nil {
			return false, err
		}
		for _, task := range tasks {
			if more, err := os.ReadFile(task); err == nil {
				children = append(append(children, ' '), more...)
			}
		}
		for _, word := range strings.Fields(string(children)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				return false, err
			}
			if name, err := os.ReadFile(
				fmt.Sprintf("/proc/%d/comm", child),
			); err == nil && strings.TrimSpace(string(name)) == "gpushare-front" &&
				child != before {
				if s, err := sandbox.StateOf(child); err == nil && s.Filtered { // It has given up what it does not need.
					pid = child
					return true, nil
				}
			}
		}
		return false, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// What reads the requests of users has no capabilities, no file, no network, and few calls of the kernel, as the kernel reports it.
func TestFrontIsConfined(t *testing.T) {
	n := startFronted(t)
	pid := frontPID(t, n, 0)
	s, err := sandbox.StateOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	if s.UID == 0 || s.Effective != 0 || s.Permitted != 0 || !s.NoNewPrivs || !s.Filtered {
		t.Errorf("the kernel reports %+v", s)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nGroups:\t \n") {
		t.Errorf("it has groups: %s", text)
	}
	// Every thread: a restriction that one thread lacks restricts nothing.
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("it has %d threads: %v", len(threads), err)
	}
	for _, file := range threads {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // It has ended.
		}
		for _, want := range []string{"\nSeccomp:\t2\n", "\nNoNewPrivs:\t1\n", "\nCapEff:\t0000000000000000\n"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s lacks %q: %s", file, want, b)
			}
		}
	}
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range descriptors {
		to, err := os.Readlink(fd)
		if err != nil {
			continue // It was closed.
		}
		if number := filepath.Base(fd); !strings.HasPrefix(to, "socket:") && !strings.HasPrefix(to, "anon_inode:") && number != "1" &&
			number != "2" {
			t.Errorf("it has %s open as %s", to, number)
		}
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid)); err != nil || strings.TrimSpace(string(b)) != "900" {
		t.Errorf("its score of memory is %s, %v", b, err)
	}
	if c := n.CLI(soon(t), "condition", "list"); strings.Contains(c.Out, "front") {
		t.Errorf("there is a condition: %s", c.Out)
	}
}

// memberConn connects as a member, whose requests the front reads. It ends with the test.
func memberConn(t *testing.T, n *harness.Node, uid int) net.Conn {
	t.Helper()
	c, err := dialAs(n.Socket(), uid, uid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// dialAs connects from a thread with another uid, which is what the kernel reports of the peer. The thread ends then.
func dialAs(socket string, uid, gid int) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // It is not unlocked: the thread ends with the goroutine.
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), ^uintptr(0)); errno != 0 {
			done <- result{nil, errno}
			return
		}
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
			done <- result{nil, errno}
			return
		}
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			done <- result{nil, errno}
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			if err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err == nil {
				f := os.NewFile(uintptr(fd), "client")
				c, failed := net.FileConn(f)
				f.Close()
				done <- result{c, failed}
				return
			}
			unix.Close(fd)
		}
		done <- result{nil, err}
	}()
	r := <-done
	return r.c, r.err
}

// exchange sends a request and reads its answer.
func exchange(t *testing.T, c net.Conn, request string) (*http.Response, string) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(c, request) }() // The answer may come before the end of the request.
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// bytesRead is how much a process has read, by the kernel's account: from sockets and files.
func bytesRead(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "rchar:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(rest))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("there is no rchar")
	return 0
}

// Bodies of members that are no request of the API reach the front only: the daemon reads none of them, and has no more memory.
func TestBodiesOfMembersDoNotReachTheDaemon(t *testing.T) {
	n := startFronted(t)
	uid := callers()[member].uid
	const size = 1 << 20
	post := func(length, body string) string {
		return "POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nConnection: close\r\n" + length + "\r\n" + body
	}
	whole := func(body string) string { return post(fmt.Sprintf("Content-Length: %d\r\n", len(body)), body) }
	aliases := "a: &a [x, x, x, x, x, x, x, x]\n" + strings.Repeat("b: [*a, *a, *a, *a, *a, *a, *a, *a]\n", size/40)
	keys := &strings.Builder{}
	for i := 0; keys.Len() < size-100; i++ {
		fmt.Fprintf(keys, `"key%d":{},`, i)
	}
	chunks := &strings.Builder{}
	for range 200 {
		fmt.Fprintf(chunks, "1000\r\n%s\r\n", strings.Repeat("[", 0x1000))
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.DaemonPID()), []byte("5"), 0); err != nil {
		t.Skipf("this kernel does not let the peak of memory be reset: %v", err)
	}
	before, memory := bytesRead(t, n.DaemonPID()), memoryPeak(t, n.DaemonPID())
	sent := 0
	for range 6 {
		for name, request := range map[string]string{
			"deep lists": whole(strings.Repeat("[", size)), "deep objects": whole(strings.Repeat(`{"a":`, size/5)), "unknown keys": whole("{" + strings.TrimSuffix(keys.String(), ",") + "}"),
			"aliases of YAML": whole(aliases), "chunks": post("Transfer-Encoding: chunked\r\n", chunks.String()+"0\r\n\r\n"),
		} {
			res, body := exchange(t, memberConn(t, n, uid), request)
			if res.StatusCode != http.StatusBadRequest || !strings.Contains(body, "cannot read the request") {
				t.Errorf("%s: %d %s", name, res.StatusCode, body)
			}
			sent += len(request)
		}
	}
	slow := memberConn(t, n, uid)
	if _, err := io.WriteString(slow, post("Transfer-Encoding: chunked\r\n", "fffff\r\n{")); err != nil {
		t.Fatal(err)
	}
	read := bytesRead(t, n.DaemonPID()) - before
	more := int(memoryPeak(t, n.DaemonPID())) - int(memory)
	t.Logf("of %d bytes the daemon read %d for all that it does, and its peak of memory rose by %d", sent, read, more)
	if read > sent/3 {
		t.Errorf("the daemon read %d of %d bytes", read, sent)
	}
	if more > 16<<20 {
		t.Errorf("the daemon has %d bytes more", more)
	}
	if res, body := exchange(t, memberConn(t, n, uid), "GET /v1 HTTP/1.1\r\nHost: gpushare\r\n\r\n"); res.StatusCode != http.StatusOK ||
		!strings.Contains(body, `"role":"member"`) {
		t.Errorf("afterwards: %d %s", res.StatusCode, body)
	}
}

// The front is killed in the middle of requests: their callers get an error that says it, the next request is answered, and
// administrators notice nothing.
func TestFrontIsKilled(t *testing.T) {
	n := startFronted(t)
	who := callers()[member]
	events, err := n.Spawn(commandOf(t, n, who, "events"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(events.Kill)
	pid := 0
	for range 3 {
		pid = frontPID(t, n, pid)
		stream := memberConn(t, n, who.uid)
		if err := stream.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(stream, "GET /v1/events HTTP/1.1\r\nHost: gpushare\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(stream)
		if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("the events are not followed: %v", err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(in); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a stream continues without its front")
		}
		if r := n.CLI(soon(t), "status"); r.Code != 0 {
			t.Errorf("root is not served: %s", r.Err)
		}
		if r := asUID(t, n, uint32(who.uid), uint32(who.gid), nil, "status"); r.Code != 0 {
			t.Errorf("the next request of a member exits with %d: %s", r.Code, r.Err)
		}
	}
	select {
	case <-events.Done():
	case <-soon(t).Done():
		t.Fatal("the command does not end")
	}
	// It may not have had its answer when the first front was killed.
	if out := events.Output(); events.Code() == 0 || !strings.Contains(out, "ended") && !strings.Contains(out, "cannot reach gpushared") {
		t.Errorf("the command that followed events exits with %d: %s", events.Code(), out)
	}
}

// commandOf is a command of gpushare as a person.
func commandOf(t *testing.T, n *harness.Node, who person, args ...string) *exec.Cmd {
	t.Helper()
	cmd := who.command(t.Context(), append([]string{filepath.Join(n.Bin, "gpushare")}, args...)...)
	cmd.Env = append(cmd.Env, "GPUSHARE_SOCKET="+n.Socket())
	return cmd
}

// A front that does not start closes the daemon to users, who get an error that says so, and not to administrators. A condition says why.
func TestWithoutAFrontAdministratorsAreServed(t *testing.T) {
	n := startFronted(t, "front", "/bin/false")
	err := harness.Await(soon(t), 50*time.Millisecond, "the condition is there", func() (bool, error) {
		r := n.CLI(soon(t), "condition", "list")
		return r.Code == 0 && strings.Contains(r.Out, "are not served"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := callers()[adminGroup]
	if r := asUID(t, n, uint32(admin.uid), uint32(admin.gid), []uint32{gidAdmins}, "status"); r.Code != 0 {
		t.Errorf("an administrator is not served: %s", r.Err)
	}
	// Between two attempts callers wait for the next one, but not for long.
	err = harness.Await(soon(t), 50*time.Millisecond, "a member is refused", func() (bool, error) {
		res, body := exchange(
			t, memberConn(t, n, callers()[member].uid), "POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nContent-Length: 3\r\n\r\n{}\n",
		)
		var e struct {
			Error struct{ Kind, Message, Hint string }
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			return false, err
		}
		if res.StatusCode != http.StatusServiceUnavailable || e.Error.Kind != "unavailable" ||
			!strings.Contains(e.Error.Message, "gpushare-front does not run") ||
			e.Error.Hint == "" {
			return false, fmt.Errorf("%d %s", res.StatusCode, body)
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	who := callers()[member]
	if r := asUID(t, n, uint32(who.uid), uint32(who.gid), nil, "status"); r.Code == 0 ||
		!strings.Contains(r.Err, "gpushare-front does not run") {
		t.Errorf("the status of a member exits with %d: %s", r.Code, r.Err)
	}
}

// A caller who goes away ends their request in the daemon, through the front: one that waits leaves the queue, and no connection of
// the daemon is left.
func TestRequestEndsWithItsCallerThroughTheFront(t *testing.T) {
	n := startFronted(t)
	apply(t, n, replaced(t, rolesSpec, "gpus: {index: 2}}]\n  - name: blue", "gpus: {index: 2}, max_leases: 1}]\n  - name: blue"))
	who := callers()[member]
	connections := descriptorsOf(t, n.DaemonPID())
	runs, err := n.Spawn(commandOf(t, n, who, "run", "-q", "--", "sh", "-c", "echo runs.; exec sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runs.Kill)
	if err := runs.AwaitLine(soon(t), "runs."); err != nil {
		t.Fatal(err)
	}
	waits, err := n.Spawn(commandOf(t, n, who, "run", "-q", "--wait", "1h", "--", "true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(waits.Kill)
	queued := func(want int) func() (bool, error) {
		return func() (bool, error) { return len(status(t, n).Leases) == want, nil }
	}
	if err := harness.Await(soon(t), 50*time.Millisecond, "the second one waits", queued(2)); err != nil {
		t.Fatal(err)
	}
	follows := memberConn(t, n, who.uid)
	if _, err := io.WriteString(follows, "GET /v1/events HTTP/1.1\r\nHost: gpushare\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(follows), nil); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("the events are not followed: %v", err)
	}
	waits.Kill()
	if err := harness.Await(soon(t), 50*time.Millisecond, "its request has left the queue", queued(1)); err != nil {
		t.Error(err)
	}
	follows.Close()
	runs.Kill()
	err = harness.Await(soon(t), 50*time.Millisecond, "the daemon has closed the connections", func() (bool, error) {
		return descriptorsOf(t, n.DaemonPID()) <= connections, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// descriptorsOf counts the sockets of a process.
func descriptorsOf(t *testing.T, pid int) int {
	t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(slices.DeleteFunc(all, func(fd string) bool {
		to, err := os.Readlink(fd)
		return err != nil || !strings.HasPrefix(to, "socket:")
	}))
}

// The worker that calls the vendor's library may not do what neither the library nor its program needs.
func TestWorkerIsConfined(t *testing.T) {
	n := start(t, quick)
	var pid int
	err := harness.Await(soon(t), 50*time.Millisecond, "the worker has opened the driver", func() (bool, error) {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return false, err
		}
		for _, file := range all {
			b, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(b), "--confined") || !strings.Contains(string(b), n.Dir+"/") {
				continue
			}
			if pid, err = strconv.Atoi(filepath.Base(filepath.Dir(file))); err != nil {
				return false, err
			}
			s, err := sandbox.StateOf(pid)
			return err == nil && s.Filtered && s.NoNewPrivs, nil
		}
		return false, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("it has %d threads: %v", len(threads), err)
	}
	for _, file := range threads {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // It has ended.
		}
		for _, want := range []string{"\nSeccomp:\t2\n", "\nNoNewPrivs:\t1\n"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s lacks %q: %s", file, want, b)
			}
		}
	}
}

// The front hangs without ending: it is ended, the requests that it did not take are served by the next one, and administrators notice
// nothing.
func TestFrontHangs(t *testing.T) {
	enumeration.Long(t)
	n := startFronted(t)
	who := callers()[member]
	pid := frontPID(t, n, 0)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	procfstest.AwaitStopped(t, pid)                        // Its other threads could take a connection still.
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) }) // It has ended.
	all := make(chan string, 3)
	for range cap(all) {
		go func() {
			c, err := dialAs(n.Socket(), who.uid, who.gid)
			if err != nil {
				all <- err.Error()
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, _ = io.WriteString(c, "GET /v1 HTTP/1.1\r\nHost: gpushare\r\nConnection: close\r\n\r\n")
			b, err := io.ReadAll(c)
			if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200 ") || !strings.Contains(string(b), `"role":"member"`) {
				all <- fmt.Sprintf("%s, %v", b, err)
				return
			}
			all <- ""
		}()
	}
	if r := n.CLI(soon(t), "status"); r.Code != 0 {
		t.Errorf("root is not served: %s", r.Err)
	}
	for range cap(all) {
		if failed := <-all; failed != "" {
			t.Errorf("a request that the front did not take: %s", failed)
		}
	}
	if next := frontPID(t, n, pid); next == pid {
		t.Error("there is no other front")
	}
	if r := asUID(t, n, uint32(who.uid), uint32(who.gid), nil, "status"); r.Code != 0 {
		t.Errorf("the next request of a member exits with %d: %s", r.Code, r.Err)
	}
}
