package procfstest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// InMountNamespace runs the test in a new mount namespace, and reports true there: it sees the mounts of all its threads and of the
// processes that it starts, and none that another test makes meanwhile. What others had mounted before may still end in it. In the process
// that started it, it reports false and has its result.
func InMountNamespace(t *testing.T) bool {
	t.Helper()
	const inside = "GPUSHARE_TEST_MOUNT_NAMESPACE"
	if os.Getenv(inside) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to create a mount namespace")
	}
	// Nothing propagates into a namespace that is unshared so, or out of it (syscall.SysProcAttr).
	rerun(t, inside, &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS})
	return false
}

// rerun runs the test in another process, with a variable that it finds there, and has its result.
func rerun(t *testing.T, inside string, how *syscall.SysProcAttr) {
	t.Helper()
	const deadline = "-test.timeout=5m"
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.count=1", deadline, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = how
	out, err := cmd.CombinedOutput()
	if err == nil && strings.Contains(string(out), "--- SKIP") {
		t.Skipf("in the namespace it is skipped:\n%s", out)
	}
	t.Logf("%s", out)
	switch {
	case err != nil:
		t.Error(err)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Error("the test did not run in the namespace")
	}
}
