package node

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/exits"
)

// The command of 'gpushare run' is a child of the user's shell. Its exit code is known nevertheless, and is in the account.
func TestExitCodeOfARun(t *testing.T) {
	l, err := exits.Listen()
	if errors.Is(err, unix.EPERM) {
		t.Skip("the ends of other processes are reported to root only: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	for script, want := range map[string]struct {
		code   int
		result string
	}{
		"exit 0": {0, "exited with 0"},
		// The lease continues until its last process ends.
		"sleep 60 >/dev/null 2>&1 & exit 7": {7, "exited with 7"},
		"kill -KILL $$":                     {137, "killed by SIGKILL"},
	} {
		job, id := begin(t, n, "red", "part", "sh", "-c", "'"+script+"'")
		awaitEnd(t, job)
		if want.code == 7 {
			if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
				t.Errorf("lease stop exits with %d: %s", r.Code, r.Err)
			}
		}
		if l := awaitResult(t, n, id); l.ExitCode == nil || *l.ExitCode != want.code || l.Result != want.result {
			t.Errorf("%s: %+v, want %d, %s", script, l, want.code, want.result)
		}
	}
}
