package node

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/harness"
)

// join is in a handshake for half of the time, until it is killed.
func (p *probe) join() {
	const half = 10 * time.Millisecond
	for i := 0; ; i++ {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: p.Socket})
		}
		if err != nil {
			fmt.Println(unix.ErrnoName(errnoOf(err)))
			return
		}
		if i == 0 {
			fmt.Println("joins")
		}
		time.Sleep(half)
		_ = unix.Close(fd) // It has nothing to write.
		time.Sleep(half)
	}
}

// A lease whose processes join MPS all the time is frozen between their handshakes: a new lease joins while it is frozen, and the
// daemon finds no frozen process that keeps others out.
func TestMPSServesOthersWhileALeaseIsFrozen(t *testing.T) {
	t.Parallel()
	n := newMPSNode(t, "1s")
	needsFreezer(t)
	events := follow(t, n.Node)
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(probe{Socket: n.socket, Joins: true})
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.who[member].command(t.Context(), filepath.Join(n.Bin, "gpushare"), "run", "-q", "-t", "red", "--", program)
	cmd.Env = append(cmd.Env, "GPUSHARE_SOCKET="+n.Socket(), probeEnv+"="+string(text))
	job, err := n.Spawn(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "joins"); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if err := harness.Await(soon(t), 20*time.Millisecond, "it is not frozen", func() (bool, error) {
			r := n.CLI(soon(t), "tenant", "freeze", "red")
			return r.Code == 0 && strings.Contains(r.Out, " is frozen"), nil
		}); err != nil {
			t.Fatal(err)
		}
		if r := n.CLI(
			soon(t),
			append(
				[]string{"run", "-q", "-t", "blue", "--"},
				n.Burn("--memory", "1MiB", "--hold", "--seconds", "0.05")...)...); r.Code != 0 {
			t.Errorf("a lease that joins meanwhile: %s", r.Err)
		}
		if r := n.CLI(soon(t), "tenant", "thaw", "red"); r.Code != 0 {
			t.Fatal(r.Err)
		}
	}
	events.mu.Lock()
	defer events.mu.Unlock()
	for _, e := range events.events {
		if e.Kind == "mps.blocked.thawed" {
			t.Errorf("it was frozen in a handshake: %s", e.Message)
		}
	}
}
