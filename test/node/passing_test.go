package node

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/hostile"
)

// lingering is how long the kernel waits in a close of what is passed here.
const lingering = 30 * time.Second

// letPass lets the kernel pass descriptors to the daemon, as those before Linux 6.16 do, which cannot refuse them.
func letPass(t *testing.T, n *harness.Node) {
	t.Helper()
	const passRights = 83
	pidfd, err := unix.PidfdOpen(n.DaemonPID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.DaemonPID()))
	if err != nil {
		t.Fatal(err)
	}
	listening := 0
	for _, e := range entries {
		var theirs int
		if _, err := fmt.Sscan(e.Name(), &theirs); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdGetfd(pidfd, theirs, 0)
		if err != nil {
			continue // It is closed by now.
		}
		if accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && accepts == 1 {
			listening++
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, passRights, 1); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
				t.Fatal(err)
			}
		}
		unix.Close(fd)
	}
	if listening == 0 {
		t.Fatal("the daemon does not listen")
	}
}

// Users pass sockets whose close waits, within the limits of their connections and beyond them. No one waits for them, neither while the
// daemon serves nor when it ends.
func TestPassedSocketsKeepNoOneWaiting(t *testing.T) {
	for _, kernel := range []string{"this one", "before 6.16"} {
		t.Run(kernel, func(t *testing.T) {
			n := startFronted(t)
			if kernel != "this one" {
				letPass(t, n)
			}
			front := frontPID(t, n, 0)
			passes := func(uid int, text string, flags int) {
				t.Helper()
				c := memberConn(t, n, uid).(*net.UnixConn)
				for range 3 {
					err := hostile.Pass(t, c, []byte(text), hostile.Lingering(t, lingering), flags)
					if err != nil && !errors.Is(err, hostile.ErrRefused) && !errors.Is(err, unix.EPIPE) &&
						!errors.Is(err, unix.ECONNRESET) {
						t.Fatal(err)
					}
				}
			}
			for range 10 {
				passes(callers()[withoutRole].uid, "x", 0)
				passes(callers()[withoutRole].uid, "x", unix.MSG_OOB)
			}
			for range 20 {
				passes(callers()[member].uid, "GET /v1/status HTTP/1.1\r\nHost: gpushare\r\nX: ", 0)
				passes(callers()[member].uid, "GET /v1/status HTTP/1.1\r\nHost: gpushare\r\n\r\n", 0)
			}
			began := time.Now()
			if c := n.CLI(soon(t), "status"); c.Code != 0 {
				t.Error(c)
			}
			res, body := exchange(t, memberConn(t, n, callers()[colleague].uid), "GET /v1/status HTTP/1.1\r\nHost: gpushare\r\n\r\n")
			if res.StatusCode != http.StatusOK {
				t.Errorf("a member gets %d %s", res.StatusCode, body)
			}
			if now := frontPID(t, n, 0); now != front {
				t.Errorf("the front %d ended", front)
			}
			if c := n.CLI(soon(t), "condition", "list"); strings.Contains(c.Out, "front") {
				t.Errorf("there is a condition: %s", c.Out)
			}
			if d := time.Since(began); d > lingering/3 {
				t.Errorf("others waited for %v", d)
			}
			began = time.Now()
			n.StopDaemon()
			if d := time.Since(began); d > lingering/4 {
				t.Errorf("the daemon ended after %v", d)
			}
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
}
