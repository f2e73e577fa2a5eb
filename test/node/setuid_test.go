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
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

// become connects, makes a request, and executes another program, which has the connection.
func (p *probe) become() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.Socket, Net: "unix"})
	fail(err)
	_, err = fmt.Fprint(c, "GET /v1 HTTP/1.1\r\nHost: gpushare\r\n\r\n")
	fail(err)
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	fail(err)
	_, err = io.Copy(io.Discard, a.Body)
	fail(err)
	raw, err := c.SyscallConn()
	fail(err)
	var fd int
	fail(raw.Control(func(of uintptr) { fd, err = unix.Dup(int(of)) })) // It stays open.
	fail(err)
	fmt.Println(fd)
	fail(syscall.Exec(p.Becomes[0], p.Becomes, nil))
}

// setuidSleep is a program of root that has root's rights for each user who starts it, and sleeps.
func setuidSleep(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a program with the rights of root needs root")
	}
	at, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("needs the program sleep (coreutils), of which a copy becomes a setuid program")
	}
	b, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "sleep")
	if err := programs.Write(name, b); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	public(t, filepath.Dir(name))
	return name
}

// public lets every user into the directories of a test.
func public(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// A process connects and executes a setuid program, which has limits and a confinement that its user has not. A request on the connection
// gets no program with those.
func TestAConnectionOutlivesItsProgram(t *testing.T) {
	t.Parallel()
	sleep := setuidSleep(t)
	n := startFronted(t)
	conn := connectedBy(t, n, []string{sleep, "60"})
	body, err := json.Marshal(api.LeaseRequest{
		Tenant: "red", Grant: "part", Command: []string{"true"}, Detach: &api.Detach{Path: "/bin/true", Dir: "/", UMask: 0o22},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(
		conn,
		"POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body),
		body,
	)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusForbidden || !strings.Contains(string(text), "it does not run as uid") {
		t.Errorf("answered with %d: %s, %v", a.StatusCode, text, err)
	}
}

// connectedBy is a connection of a member's process that has executed a program of root.
func connectedBy(t *testing.T, n *harness.Node, argv []string) net.Conn {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(probe{Socket: n.Socket(), Becomes: argv})
	if err != nil {
		t.Fatal(err)
	}
	cmd := callers()[member].command(t.Context(), program)
	cmd.Env, cmd.Stderr = append(cmd.Env, probeEnv+"="+string(text)), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // It may have ended.
		_ = cmd.Wait()         // It was killed.
	})
	var theirs int
	if _, err := fmt.Fscan(out, &theirs); err != nil {
		t.Fatal(err)
	}
	err = harness.Await(soon(t), 10*time.Millisecond, "it does not execute the program", func() (bool, error) {
		name := procfs.Name(cmd.Process.Pid)
		if name == "" {
			return false, errors.New("it has exited")
		}
		return name == filepath.Base(argv[0]), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if uid, err := procfs.EUID(cmd.Process.Pid); err != nil || uid != 0 {
		t.Skipf("needs setuid programs: uid %d, %v", uid, err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, theirs, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "connection")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
