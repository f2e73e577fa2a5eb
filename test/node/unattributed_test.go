package node

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// An unattributed process on a managed GPU is reported, and stopped gracefully if the spec says so. Processes of root and of
// leases are not stopped.
func TestUnattributedIsStopped(t *testing.T) {
	enumeration.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := newNode(t, quick)
	n.Settings = map[string]string{"converge_interval": "1h"} // The scan does not need a full observation.
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, replaced(t, shared, "enforce: on", "enforce: on, isolation: {unattributed: stop}"))
	events := follow(t, n)
	burn := func(uid uint32) *exec.Cmd {
		argv := n.Burn("--gpu", "3", "--memory", "64MiB", "--hold")
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env, cmd.Dir = n.Environ(), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	user, root := burn(65534), burn(0)
	ended := make(chan error, 1)
	go func() { ended <- user.Wait() }()
	t.Cleanup(func() {
		_ = user.Process.Kill() // They may have ended.
		_ = root.Process.Kill()
		_ = root.Wait()
	})
	job, _ := begin(t, n, "red", "part", n.Burn("--memory", "64MiB", "--hold")...)
	events.await(t, "gpu.unattributed", "")
	began := time.Now()
	select {
	case err := <-ended:
		t.Logf("it ended after %.1f s: %v", time.Since(began).Seconds(), err)
		if user.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) { // its exit code after SIGTERM
			t.Errorf("SIGTERM was not sent to it: %v", err)
		}
		if elapsed := time.Since(began); elapsed < 20*time.Second {
			t.Errorf("it was stopped after %s, without its grace", elapsed)
		}
	case <-time.After(90 * time.Second):
		t.Fatalf("it was not stopped\n%s", daemonLog(n))
	}
	events.await(t, "gpu.unattributed.stopped", "")
	for what, pid := range map[string]int{"root's process": root.Process.Pid, "a lease's": job.PID()} {
		if st, err := procfs.Read(pid); err != nil || st.Dead() {
			t.Errorf("%s was stopped: %v", what, err)
		}
	}
	var s *api.Status
	if err := harness.Await(soon(t), 100*time.Millisecond, "root's process is not reported, or the other still is", func() (bool, error) {
		s = status(t, n)
		count := 0
		for _, c := range s.Node.Conditions {
			if c.Kind == "unattributed" {
				count++
			}
		}
		return count == 1 && hasCondition(s, "unattributed", "it belongs to root"), nil
	}); err != nil {
		t.Errorf("%v: %+v", err, s.Node.Conditions)
	}
}
