package stop

import (
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/lease"
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

// Which processes of a keyed lease may be stopped depends on who named its cgroup, and for whom.
func TestDecideNamed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv (util-linux)")
	}
	const engine, user = 61000, 61001
	by := func(attachedBy, uid int) lease.Lease {
		return lease.Lease{Origin: lease.OriginAttached, Engine: &lease.Engine{}, AttachedBy: attachedBy, UID: uid}
	}
	attached := lease.Lease{Origin: lease.OriginAttached, AttachedBy: user, UID: user}
	pod, job, other, itsOwn, forRoot := by(0, 0), by(0, user), by(engine, user), by(engine, engine), by(engine, 0)
	for _, c := range []struct {
		name                                              string
		as                                                []string
		attached, pod, job, other, itsOwn, forRootByOther Decision
	}{
		{"the user", []string{"--reuid=61001"}, MayStop, MayStop, MayStop, MayStop, IsOther, IsOther},
		{"the engine", []string{"--reuid=61000"}, MayStop, MayStop, MayStop, IsOther, MayStop, IsOther},
		{"another user", []string{"--reuid=61002"}, MayStop, MayStop, MayStop, IsOther, IsOther, IsOther},
		{"root", nil, MayStop, MayStop, IsRoot, IsRoot, IsRoot, IsRoot},
		{"a setuid program of root that the user runs", []string{"--ruid=61001"}, MayStop, MayStop, IsRoot, IsRoot, IsRoot, IsRoot},
	} {
		cmd := exec.Command("setpriv", append(c.as, "cat")...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // It may have ended.
			_ = cmd.Wait()         // It was killed.
		})
		if _, err := in.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // It answers as the user.
			t.Fatal(err)
		}
		for of, want := range map[*lease.Lease]Decision{
			&attached: c.attached, &pod: c.pod, &job: c.job, &other: c.other, &itsOwn: c.itsOwn, &forRoot: c.forRootByOther,
		} {
			if got := DecideNamed(of, cmd.Process.Pid); got != want {
				t.Errorf("%s, in a lease of uid %d that uid %d requested: %d, want %d", c.name, of.UID, of.AttachedBy, got, want)
			}
		}
	}
}
