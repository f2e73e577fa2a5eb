package stop

import (
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDecide(t *testing.T) {
	t.Parallel()
	person, service := Process{UID: FirstUser, Known: true}, Process{UID: FirstUser - 1, Known: true}
	with := func(p Process, change func(*Process)) Process { change(&p); return p }
	for _, c := range []struct {
		name string
		p    Process
		own  int
		want Decision
	}{
		{"a person", person, 0, MayStop},
		{"a person in a login", with(person, func(p *Process) { p.Login = true }), 0, MayStop},
		{"nobody", Process{UID: 65534, Known: true}, 0, MayStop},
		{"the system's service", service, 0, IsSystem},
		{"a system's user who logged in", with(service, func(p *Process) { p.Login = true }), 0, MayStop},
		{"a system's user that left a lease", with(service, func(p *Process) { p.Escaped = true }), 0, MayStop},
		{"root's service", Process{Known: true}, 0, IsRoot},
		{"root in a login", Process{Known: true, Login: true}, 0, IsRoot},
		{"root's that left a lease", Process{Known: true, Escaped: true}, 0, IsRoot},
		{"of a user that cannot be read", Process{}, 0, Unknown},
		{"left a lease, its user cannot be read", Process{Escaped: true}, 0, Unknown},
		{"the daemon's own user", service, FirstUser - 1, MayStop},
		{"another service, of a daemon that is not root", service, 500, IsSystem},
		{"root's, of a daemon that is not root", Process{Known: true}, 500, IsRoot},
		{"a person, of a daemon that is not root", person, 500, MayStop},
	} {
		if got := Decide(c.p, c.own); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// What is read of a process decides about it.
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
		t.Errorf("one that has ended: %d", got)
	}
}
