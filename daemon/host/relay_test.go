package host

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/relay"
)

// TestMain makes this test gpushare-start --signals.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == relay.Flag {
		if relay.Serve(0) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// On a host without a service manager the relay is a child of the daemon, with the connection as its standard input.
func TestRelayIsAChild(t *testing.T) {
	client := &relay.Client{Start: childRelay{os.Args[0]}.start}
	t.Cleanup(client.Close)
	cmd := waiting(t)
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := procfs.OpenPidfd(cmd.Process.Pid, start)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Pass(func(fd int) error { return client.Signal(t.Context(), fd, unix.SIGKILL) }); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
	missing := &relay.Client{Start: childRelay{"/no/such/gpushare-start"}.start}
	if err := p.Pass(func(fd int) error { return missing.Signal(t.Context(), fd, unix.SIGKILL) }); err == nil {
		t.Error("a program that is missing is no error")
	}
}
