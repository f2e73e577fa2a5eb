package procfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// AppArmor asks both sides of a signal: the profile of the sender and that of the receiver. Profiles of containers (podman's
// containers-default, docker-default) take signals of processes without a profile and of container runtimes, not of a daemon that has a
// profile of its own. Source: apparmor.d(5), "signal rules".

// Profile is the name of the profile of AppArmor that restricts a process; empty if none does or it has exited.
func Profile(pid int) string {
	b, _, err := boundedread.OfProcess(pid, "attr/current", boundedread.Value)
	if err != nil {
		return "" // Also EINVAL: no security module has labels here.
	}
	return parseProfile(string(b))
}

// parseProfile reads "NAME (MODE)".
func parseProfile(label string) string {
	label = strings.TrimRight(label, "\x00\n")
	name, mode, ok := strings.Cut(label, " (")
	if !ok || mode == "unconfined)" {
		return "" // "unconfined", or a label of another security module.
	}
	return name
}

// Relay sends signals from a process that no profile restricts, with what the pidfd refers to.
type Relay func(ctx context.Context, pidfd int, sig unix.Signal) error

// signaller is how signals are sent.
type signaller struct {
	send    func(pidfd int, sig unix.Signal) error
	profile func(pid int) string
	own     string // the profile of this process; empty if it has none
	relay   Relay
}

var signals atomic.Pointer[signaller]

// UseRelay sends the signals by relay that processes with a profile do not take from this process. It has no effect where no
// profile restricts this process.
func UseRelay(own string, relay Relay) {
	s := directly
	if own != "" {
		s.own, s.relay = own, relay
	}
	signals.Store(&s)
}

var directly = signaller{
	send:    func(pidfd int, sig unix.Signal) error { return unix.PidfdSendSignal(pidfd, sig, nil, 0) },
	profile: Profile,
}

// RefusedError says that a security module does not let a signal through.
type RefusedError struct {
	PID     int
	Name    string
	Profile string // of the process; empty: it has none of AppArmor
	Own     string // of this process
	Relay   error  // why the relay could not send it; nil without one
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("cannot signal pid %d (%s): ", e.PID, e.Name)
	switch {
	case e.Profile == "":
		text += "the security module of this host refuses it"
	case e.Own == "":
		text += fmt.Sprintf("AppArmor refuses it: its profile is %s", e.Profile)
	default:
		text += fmt.Sprintf("AppArmor refuses it: its profile %s takes no signals of %s", e.Profile, e.Own)
	}
	if e.Relay != nil {
		text += fmt.Sprintf(", and the relay of signals failed: %v", e.Relay)
	}
	return text
}

// Unwrap returns the error of the kernel.
func (e *RefusedError) Unwrap() error { return unix.EACCES }

// Hint returns a command that helps.
func (e *RefusedError) Hint() string {
	if e.Relay != nil {
		return "see why the relay of signals does not run: 'journalctl --unit=gpushare-relay-*'"
	}
	return "see what is refused: 'journalctl -k --grep DENIED'"
}

// deliver sends a signal. A process whose profile differs gets it from the relay: an attempt from here would be refused, and the
// kernel would log that.
func (s *signaller) deliver(ctx context.Context, pid, pidfd int, sig unix.Signal) error {
	refused := &RefusedError{PID: pid, Own: s.own}
	if s.relay != nil && sig != 0 { // Signal 0 only asks whether it exists.
		if profile := s.profile(pid); s.differs(profile) {
			if refused.Relay = s.relay(ctx, pidfd, sig); refused.Relay == nil || errors.Is(refused.Relay, unix.ESRCH) ||
				errors.Is(refused.Relay, unix.EPERM) {
				return refused.Relay
			}
			if ctx.Err() != nil {
				return notInTime(ctx)
			}
		}
	}
	err := s.send(pidfd, sig)
	if !errors.Is(err, unix.EACCES) { // A missing permission is EPERM (kill(2)).
		return err
	}
	if s.relay != nil && refused.Relay == nil && sig != 0 {
		if refused.Relay = s.relay(ctx, pidfd, sig); refused.Relay == nil || errors.Is(refused.Relay, unix.ESRCH) {
			return refused.Relay
		}
		if ctx.Err() != nil {
			return notInTime(ctx)
		}
	}
	refused.Profile, refused.Name = s.profile(pid), Name(pid)
	return refused
}

// notInTime is the error of a relay for which ctx was too short. It is no refusal: a stop counts a refused SIGTERM as sent, and goes on to
// SIGKILL after the grace.
func notInTime(ctx context.Context) error {
	return fmt.Errorf("the relay of signals did not send it in time: %w", ctx.Err())
}

// differs reports whether a profile is neither this process's nor of a program of gpushare, which take its signals.
func (s *signaller) differs(profile string) bool {
	return profile != "" && profile != s.own && !strings.HasPrefix(profile, "gpushare")
}
