package procfs

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestProfileOfALabel(t *testing.T) {
	t.Parallel()
	for label, want := range map[string]string{
		"containers-default-0.62.2 (enforce)\n":      "containers-default-0.62.2",
		"docker-default (complain)\n":                "docker-default",
		"a profile//with a child (enforce)\n":        "a profile//with a child",
		"unconfined\n":                               "",
		"chrome (unconfined)\n":                      "", // It restricts nothing.
		"system_u:system_r:container_t:s0:c1,c2\x00": "",
		"_\n": "",
		"":    "",
		"gpushared//&containers-default-0.62 (mixed)\n": "gpushared//&containers-default-0.62",
	} {
		if got := parseProfile(label); got != want {
			t.Errorf("the profile of %q is %q, want %q", label, got, want)
		}
	}
	if got := Profile(1 << 30); got != "" {
		t.Errorf("a process that does not exist has the profile %q", got)
	}
}

// Who sends a signal, and what is said when nothing can send it.
func TestRefusedSignals(t *testing.T) {
	t.Parallel()
	const container = "containers-default-0.62.2"
	noRelay := errors.New("systemd does not answer")
	for _, c := range []struct {
		name             string
		own, profile     string
		direct, relayed  error // the answers
		noRelay          bool
		want             error
		directs, relayes int
		says             string
	}{
		{"nothing refuses", "gpushared", "", nil, noRelay, false, nil, 1, 0, ""},
		{"a program of gpushare takes it", "gpushared", "gpushare-nvml", nil, noRelay, false, nil, 1, 0, ""},
		{"a container is not tried from here", "gpushared", container, unix.EACCES, nil, false, nil, 0, 1, ""},
		{"it has exited", "gpushared", container, unix.EACCES, unix.ESRCH, false, ErrNoProcess, 0, 1, ""},
		{"the permission is missing", "gpushared", container, unix.EACCES, unix.EPERM, false, unix.EPERM, 0, 1, ""},
		{"a profile that could not be read", "gpushared", "", unix.EACCES, nil, false, nil, 1, 1, ""},
		{"the relay fails and the kernel lets it through", "gpushared", container, nil, noRelay, false, nil, 1, 1, ""},
		{"the relay fails", "gpushared", container, unix.EACCES, noRelay, false, unix.EACCES, 1, 1, "its profile " + container + " takes no signals of gpushared, and the relay of signals failed: systemd does not answer"},
		{"the relay is refused too", "gpushared", container, unix.EACCES, unix.EACCES, false, unix.EACCES, 1, 1, "the relay of signals failed: permission denied"},
		{"a daemon without a profile", "", container, unix.EACCES, nil, true, unix.EACCES, 1, 0, "AppArmor refuses it: its profile is " + container},
		{"another security module", "", "", unix.EACCES, nil, true, unix.EACCES, 1, 0, "the security module of this host refuses it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			directs, relayes := 0, 0
			s := &signaller{
				own: c.own, profile: func(int) string { return c.profile },
				send: func(_ int, sig unix.Signal) error {
					directs++
					if sig != unix.SIGHUP {
						t.Errorf("signal %d was sent", sig)
					}
					return c.direct
				},
			}
			if !c.noRelay {
				s.relay = func(_ context.Context, _ int, sig unix.Signal) error {
					relayes++
					if sig != unix.SIGHUP {
						t.Errorf("signal %d was relayed", sig)
					}
					return c.relayed
				}
			}
			p := pidfdOf(t, os.Getpid())
			err := p.signalBy(t.Context(), s, unix.SIGHUP)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || directs != c.directs || relayes != c.relayes {
				t.Errorf(
					"%v after %d attempts and %d by the relay, want %v after %d and %d", err, directs, relayes, c.want, c.directs,
					c.relayes,
				)
			}
			if c.says == "" {
				return
			}
			refused, ok := errors.AsType[*RefusedError](err)
			if !ok || !strings.Contains(err.Error(), c.says) || strings.Count(err.Error(), "cannot signal") != 1 ||
				!strings.Contains(refused.Hint(), "'journalctl ") {
				t.Errorf("it says %q", err)
			}
		})
	}
}

// A relay for which the context is too short has not sent the signal, and nothing refused it: who asks must not count it as sent. The
// relay is asked first, or after the kernel's refusal.
func TestRelayThatIsNotInTime(t *testing.T) {
	t.Parallel()
	for _, profile := range []string{"containers-default-0.62.2", ""} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &signaller{
			own:     "gpushared",
			profile: func(int) string { return profile },
			send:    func(int, unix.Signal) error { return unix.EACCES },
			relay: func(ctx context.Context, _ int, _ unix.Signal) error {
				cancel()
				return ctx.Err()
			},
		}
		p := pidfdOf(t, os.Getpid())
		err := p.signalBy(ctx, s, unix.SIGHUP)
		if _, refused := errors.AsType[*RefusedError](err); refused || !errors.Is(err, context.Canceled) || errors.Is(err, unix.EACCES) ||
			!strings.HasPrefix(err.Error(), "cannot signal pid ") {
			t.Errorf("profile %q: the error is %v", profile, err)
		}
	}
}

// A relay has no effect where no profile restricts the daemon.
func TestRelayWithoutProfile(t *testing.T) {
	t.Cleanup(func() { UseRelay("", nil) })
	relay := func(context.Context, int, unix.Signal) error { return errors.New("it was asked") }
	UseRelay("", relay)
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	p := pidfdOf(t, cmd.Process.Pid)
	if err := p.Terminate(t.Context()); err != nil {
		t.Errorf("SIGTERM is not sent: %v", err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it got no SIGTERM")
	}
}

func pidfdOf(t *testing.T, pid int) *Pidfd {
	t.Helper()
	start, err := Start(pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := OpenPidfd(pid, start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}
