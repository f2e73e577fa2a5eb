package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// A program has the audit login uid of its caller. Where the kernel refuses that, it is started all the same, and that is said.
func TestKeepsTheAuditLogin(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	own := loginOf(me.PID)
	if os.Geteuid() != 0 || own == nil || *own != unsetLogin {
		t.Skip("needs root without a login uid, and a kernel with them (CONFIG_AUDIT)")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv (util-linux)")
	}
	for _, c := range []struct {
		name, before  string // of the process that starts it
		want, warning string
	}{
		{"of a service", "", "4711", ""},
		{"of a login, and it may be changed", "echo 99 >/proc/self/loginuid", "4711", ""},
		{"of a login", "echo 99 >/proc/self/loginuid; set -- setpriv --bounding-set=-audit_control -- \"$@\"", "99", "the audit login uid of the command is 99, that of its caller is 4711: operation not permitted"},
	} {
		k, starter := supervisors(t), filepath.Join(t.TempDir(), "starter")
		if err := programs.Write(starter, fmt.Sprintf("#!/bin/sh\nset -- %s \"$@\"\n%s\nexec \"$@\"\n", k.Program, c.before)); err != nil {
			t.Fatal(err)
		}
		k.Program = starter
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := shellProgram(t, "cat /proc/self/loginuid")
			p.Credentials.Login = new(uint32(4711))
			w, err := k.Start(deadline(t), "a", Cgroups{}, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if err := w.Start(deadline(t), p); err != nil || w.Warning != c.warning {
				t.Errorf("the start warns %q, want %q: %v", w.Warning, c.warning, err)
			}
			if _, err := k.Result(deadline(t), "a"); err != nil {
				t.Error(err)
			}
			if got := strings.TrimSpace(output(t, k, "a", -1)); got != c.want {
				t.Errorf("it has login uid %s, want %s", got, c.want)
			}
		})
	}
}
