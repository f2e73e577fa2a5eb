package devicepolicy

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
)

// ApplyIsolation closes the GPUs to logins before there are any: at boot the daemon comes later, and the driver perhaps
// later still. Nothing is known of the GPUs yet, so all are closed if the accepted spec asks for a guard at all; the
// daemon opens those that are not managed. It runs beside a daemon as well, and then leaves what stands as it is. What it
// did is one line on out.
func ApplyIsolation(hostRoot, stateDir, logins string, out io.Writer) error {
	why, err := loginFilterRequested(stateDir)
	if err != nil {
		return err
	}
	if why == "" {
		fmt.Fprintln(out, "no guard: the accepted spec asks for none")
		return nil
	}
	if logins == "" {
		fmt.Fprintln(out, "no guard: no cgroup is known to hold the logins of this host (logins_cgroup)")
		return nil
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return err
	}
	active, ok, err := devices.ReadGuard(h.Dir(logins))
	if errors.Is(err, devices.ErrNoCgroup) {
		return fmt.Errorf("cannot close GPUs to logins: there is no cgroup %s yet", logins)
	}
	if err != nil {
		return fmt.Errorf("cannot close GPUs to logins: %w", err)
	}
	if !ok {
		// What cannot be read of the host only makes the list shorter.
		host, _ := isolation.ReadHost(hostRoot)
		active = devices.Guard{Closed: isolation.AllGPUs(&host)}
	}
	// One that stands is left as it is, but for its version.
	wrote, err := devices.SetGuard(h.Dir(logins), active)
	switch {
	case err != nil:
		return fmt.Errorf("cannot close GPUs to logins: %w", err)
	case ok && !wrote:
		fmt.Fprintf(out, "the guard of %s stands already\n", logins)
	case ok:
		fmt.Fprintf(out, "the guard of %s is of this version now\n", logins)
	default:
		fmt.Fprintf(out, "every GPU is closed to %s until gpushared knows which it manages: %s\n", logins, why)
	}
	return nil
}

// loginFilterRequested says why logins are to be guarded; empty when they are not. A state that cannot be read may have asked for
// it: access fails closed.
func loginFilterRequested(stateDir string) (why string, err error) {
	st, err := store.Peek(stateDir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil // There was never a spec.
	case errors.Is(err, store.ErrNewerFormat), errors.Is(err, store.ErrOlderFormat):
		return "", err
	case err != nil:
		return "the state cannot be read, and it may ask for it: " + err.Error(), nil
	case st.Accepted == nil || st.Accepted.Unmanaged != "":
		return "", nil
	}
	s, err := spec.Decode("state.json", []byte(st.Accepted.YAML))
	if err != nil {
		return "the accepted spec cannot be read by this version, and it may ask for it", nil
	}
	s.Normalize()
	want := state.WantOf(s, spec.Resolved(st.Accepted.Resolved), st.Accepted.Generation)
	if !want.Enforcing() || !want.Guarding() || !managesAny(s) {
		return "", nil
	}
	return fmt.Sprintf("generation %d says isolation.logins: closed", want.Generation), nil
}

func managesAny(s *api.Spec) bool {
	for i := range s.GPUs {
		if m := s.GPUs[i].Mode; m != api.ModeExternal && m != api.ModeUnmanaged {
			return true
		}
	}
	return false
}
