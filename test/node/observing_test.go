package node

import (
	"fmt"
	"os"
	"os/user"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A spec that observes is accepted on a node in use, because it changes nothing. It, the plan and the doctor say what
// 'enforce: on' would do and to whom, and 'on' is refused as they said.
func TestObservingSaysWhatOnWouldDo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	account, err := user.LookupId(strconv.Itoa(nobody))
	if err != nil {
		t.Fatal(err)
	}
	n := start(t, quick)
	pid := contextOn(t, n, nobody, "--gpu", "3").Process.Pid
	opener := watch(t, n, nobody, "nvidia3")
	observing := replaced(t, closedLogins, "enforce: on", "enforce: observe")
	before := counters(t, n)["writes"]
	r := n.CLIIn(soon(t), observing, "apply", "-f", "-")
	if r.Code != 0 || !strings.Contains(r.Err, "with enforce: on this would be refused") ||
		!strings.Contains(r.Err, fmt.Sprintf("pid %d", pid)) {
		t.Fatalf("a spec that observes: %+v", r)
	}
	d := n.CLI(soon(t), "doctor")
	if d.Code != 0 {
		t.Fatalf("%+v", d)
	}
	for _, want := range []string{"nothing is changed, limited or stopped", "gpushare plan", "with enforce: on this would be refused: it would disturb", fmt.Sprintf("pid %d (gpusim-burn", pid), opener.pid, "no user but root"} {
		if !strings.Contains(d.Out, want) {
			t.Errorf("the doctor does not say %q:\n%s", want, d.Out)
		}
	}
	if r := n.CLI(soon(t), "plan"); r.Code != 0 || !strings.Contains(r.Out, fmt.Sprintf("stop pid %d", pid)) {
		t.Errorf("the plan: %+v", r)
	}
	if now := counters(t, n)["writes"]; now != before {
		t.Errorf("%d writes while the node only observes", now-before)
	}
	if r := n.CLIIn(soon(t), closedLogins, "apply", "-f", "-"); r.Code != 5 || !strings.Contains(r.Err, fmt.Sprintf("pid %d", pid)) {
		t.Errorf("with enforce: on: %+v", r)
	}
	if r := n.CLIIn(soon(t), replaced(t, observing, "logins: closed", "unattributed: stop"), "apply", "-f", "-"); r.Code != 0 {
		t.Errorf("isolation.unattributed: stop: %+v", r)
	}
	if d := n.CLI(
		soon(t), "doctor",
	); !regexp.MustCompile(fmt.Sprintf(`pid %d \(gpusim-burn[^)]*\) of %s on GPU 3`, pid, account.Username)).MatchString(d.Out) ||
		strings.Contains(d.Out, opener.pid) {
		t.Errorf("the doctor with isolation.unattributed: stop:\n%s", d.Out)
	}
	if !opener.alive() {
		t.Error("a process was stopped while the node only observes")
	}
}
