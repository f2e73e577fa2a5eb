package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// The whole way: a tenant starts and stops a lease, another one tries to, and an administrator reads it. Then the files are
// changed.
func TestAuditOfLeases(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv (util-linux)")
	}
	n := inDirectory(t)
	directory(t, n, peopleDirectory())
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, rolesSpec)
	who := callers()
	as := func(column int, args ...string) (string, error) {
		cmd := who[column].command(soon(t), append([]string{filepath.Join(n.Bin, "gpushare")}, args...)...)
		cmd.Env = append(cmd.Env, "GPUSHARE_SOCKET="+n.Socket())
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	started, err := as(member, "run", "--detach", "-q", "--", "sh", "-c", "exec sleep 600", "marker")
	if err != nil {
		t.Fatal(started)
	}
	id := status(t, n).Leases[0].ID
	for _, column := range []int{anothers, colleague} {
		if out, err := as(column, "lease", "stop", id); err == nil {
			t.Errorf("%d stopped the lease: %s", column, out)
		}
	}
	if out, err := as(member, "lease", "stop", id); err != nil {
		t.Error(out)
	}
	if out, err := as(member, "audit"); err == nil {
		t.Errorf("a member reads the audit: %s", out)
	}
	r := n.CLI(soon(t), "audit", "--json", "--since", "1h")
	var got []string
	for d := json.NewDecoder(strings.NewReader(r.Out)); d.More(); {
		var l api.AuditLine
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		if l.Lease == id {
			got = append(got, fmt.Sprint(l.What, " ", l.UID, " ", l.Role, " ", l.Kind))
			if l.PID == 0 || l.Generation != 1 ||
				l.What == "start" && (!strings.Contains(l.Command, "marker") || l.Tenant != "red" || l.GPU == "") {
				t.Errorf("%+v", l)
			}
		}
	}
	want := fmt.Sprintf(
		"start %d member |stop %d member not-found|stop %d member denied|stop %d member ", who[member].uid, who[anothers].uid,
		who[colleague].uid, who[member].uid,
	)
	if strings.Join(got, "|") != want {
		t.Errorf("the audit has %q, want %q\n%s%s", got, want, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "audit", "--verify"); r.Code != 0 || !strings.Contains(r.Out, "every line follows") {
		t.Errorf("audit --verify exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if log, err := os.ReadFile(n.LogFile()); err != nil || strings.Contains(string(log), "marker") {
		t.Errorf("the journal has the arguments of a command: %v", err)
	}
	file := filepath.Join(n.Dir, "state", "audit", "audit-000001.log")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(b, []byte("marker"), []byte("MARKER"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "audit", "--verify"); r.Code != api.ExitDegraded || !strings.Contains(r.Out, "it was changed") {
		t.Errorf("after a change audit --verify exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}
