package node

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// With logins closed a process of a user on a managed GPU outside of all leases is killed at once, with a context or with only
// the device open, whatever isolation.unattributed says. Processes of root, of the system and of leases are not.
func TestClosedLoginsKillWhatIsOutside(t *testing.T) {
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
	ended := map[string]chan struct{}{}
	begun := map[string]*exec.Cmd{}
	start := func(name string, uid uint32, argv ...string) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env, cmd.Dir = n.Environ(), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			_ = cmd.Wait() // It is killed.
			close(done)
		}()
		ended[name], begun[name] = done, cmd
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // It may have ended.
	}
	burn := n.Burn("--gpu", "3", "--memory", "64MiB", "--hold")
	// The change that closes them would disturb the process that runs already.
	start("before", nobody, burn...)
	if err := harness.Await(soon(t), 50*time.Millisecond, "the change is not refused", func() (bool, error) {
		r := n.CLIIn(soon(t), closedLogins, "apply", "--check", "-f", "-") // It has no context at first.
		return r.Code == 5 && strings.Contains(r.Err, "--force") && strings.Contains(r.Err, fmt.Sprint(begun["before"].Process.Pid)), nil
	}); err != nil {
		t.Fatal(err)
	}
	if r := n.CLIIn(soon(t), closedLogins, "apply", "--force", "-f", "-"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	select {
	case <-ended["before"]:
	case <-soon(t).Done():
		t.Fatalf("the process that ran before was not stopped\n%s", daemonLog(n))
	}

	events := follow(t, n)
	job, _ := begin(t, n, "red", "part", append(strings.Fields(become), n.Burn("--memory", "64MiB", "--hold")...)...)
	start("root's", 0, burn...)
	// Anybody gets the path of a device as a descriptor, which is no use of it.
	named := names(t, n, nobody, "nvidia3")
	systems, opener := watch(t, n, games, "nvidia3"), watch(t, n, nobody, "nvidia3")
	start("user's", nobody, burn...)
	began := time.Now()
	for what, done := range map[string]<-chan struct{}{"with a context": ended["user's"], "with the device open": opener.ended} {
		select {
		case <-done:
			t.Logf("the process %s ended after %.1f s", what, time.Since(began).Seconds())
		case <-soon(t).Done():
			t.Fatalf("the process %s was not ended\n%s", what, daemonLog(n))
		}
		events.await(t, "gpu.unattributed.stopped", "")
	}
	if s := begun["user's"].ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		t.Errorf("the process with a context: %v", begun["user's"].ProcessState)
	}
	for what, pid := range map[string]int{
		"root's process": begun["root's"].Process.Pid, "the system's": systems.n, "the lease's": job.PID(),
		"the one with a path": named.n,
	} {
		if st, err := procfs.Read(pid); err != nil || st.Dead() {
			t.Errorf("%s was ended: %v\n%s", what, err, daemonLog(n))
		}
	}
}
