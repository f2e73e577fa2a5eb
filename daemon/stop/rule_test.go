package stop

import (
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/test/silentfs"
	"github.com/gpushare/gpushare/test/tracing"
)

func TestMain(m *testing.M) {
	tracing.Main()
	silentfs.Main()
	goleak.VerifyTestMain(m)
}

func TestDecide(t *testing.T) {
	t.Parallel()
	user, service := Process{UID: FirstUser, Known: true}, Process{UID: FirstUser - 1, Known: true}
	with := func(p Process, change func(*Process)) Process { change(&p); return p }
	for _, c := range []struct {
		name string
		p    Process
		own  int
		want Decision
	}{
		{"a user", user, 0, MayStop},
		{"a user in a login", with(user, func(p *Process) { p.Login = true }), 0, MayStop},
		{"uid 65534", Process{UID: 65534, Known: true}, 0, MayStop},
		{"a system service", service, 0, IsSystem},
		{"a system user in a login", with(service, func(p *Process) { p.Login = true }), 0, MayStop},
		{"a system user, escaped", with(service, func(p *Process) { p.Escaped = true }), 0, MayStop},
		{"a service of root", Process{Known: true}, 0, IsRoot},
		{"root in a login", Process{Known: true, Login: true}, 0, IsRoot},
		{"root, escaped", Process{Known: true, Escaped: true}, 0, IsRoot},
		{"an unknown user", Process{}, 0, Unknown},
		{"an unknown user, escaped", Process{Escaped: true}, 0, Unknown},
		{"the daemon's own user", service, FirstUser - 1, MayStop},
		{"another service, for a daemon that is not root", service, 500, IsSystem},
		{"root, for a daemon that is not root", Process{Known: true}, 500, IsRoot},
		{"a user, for a daemon that is not root", user, 500, MayStop},
	} {
		if got := Decide(c.p, c.own); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// The decision follows what is read of the process.
func TestDecidePID(t *testing.T) {
	t.Parallel()
	want := MayStop
	if os.Geteuid() == 0 {
		want = IsRoot
	}
	if got := DecidePID(os.Getpid()); got != want {
		t.Errorf("this process: %d, want %d", got, want)
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if got := DecideEscaped(cmd.Process.Pid); got != Unknown {
		t.Errorf("a process that has exited: %d", got)
	}
}
