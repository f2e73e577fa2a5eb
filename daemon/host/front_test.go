package host

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// waiting starts a process that waits until the test ends.
func waiting(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	return cmd
}

// A process that has the pid of a unit's by now is not taken for it, and not killed.
func TestPidOfAnotherUnit(t *testing.T) {
	cmd := waiting(t)
	cg, err := procfs.Cgroup(cmd.Process.Pid)
	if err != nil {
		t.Skipf("the cgroup of a process is not known here: %v", err)
	}
	if p, err := openMain(cmd.Process.Pid, cg+"/gpushare-front-1.service"); err == nil {
		_ = p.fd.Close()
		t.Error("it is taken for the process of a unit that it is not in")
	} else if !strings.Contains(err.Error(), "another process") {
		t.Errorf("the reason is %v", err)
	}
	p, err := openMain(cmd.Process.Pid, cg)
	if err != nil {
		t.Fatalf("it has ended, or is not taken for its own: %v", err)
	}
	select {
	case <-p.Done():
		t.Error("it has ended")
	default:
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Error("its end is not noticed")
	}
	if _, err := openMain(cmd.Process.Pid, cg); err == nil {
		t.Error("a process that has ended is found")
	}
}
