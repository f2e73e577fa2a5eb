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

// AttachLoginFilter closes the GPUs to logins before the first login: at boot the daemon starts later, and the driver may load
// later still. The GPUs are not known yet, so all of them are closed if the accepted spec requests a login filter; the
// daemon opens the unmanaged ones. While a daemon runs it keeps the active filter. It writes one line to out.
func AttachLoginFilter(hostRoot, stateDir, logins string, out io.Writer) error {
	why, err := loginFilterRequested(stateDir)
	if err != nil {
		return err
	}
	if why == "" {
		fmt.Fprintln(out, "no login filter: the accepted spec does not request one")
		return nil
	}
	if logins == "" {
		fmt.Fprintln(out, "no login filter: the cgroup of the logins of this host is not known (logins_cgroup)")
		return nil
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return err
	}
	active, ok, err := devices.ReadLoginFilter(h.Dir(logins))
	if errors.Is(err, devices.ErrNoCgroup) {
		return fmt.Errorf("cannot close GPUs to logins: cgroup %s does not exist yet", logins)
	}
	if err != nil {
		return fmt.Errorf("cannot close GPUs to logins: %w", err)
	}
	if !ok {
		// After an error the list is only shorter.
		host, _ := isolation.ReadHost(hostRoot)
		active = devices.LoginFilter{Closed: isolation.AllGPUs(&host)}
	}
	// An active filter is kept; only its program is replaced by that of this version.
	wrote, err := devices.SetLoginFilter(h.Dir(logins), active)
	switch {
	case err != nil:
		return fmt.Errorf("cannot close GPUs to logins: %w", err)
	case ok && !wrote:
		fmt.Fprintf(out, "the login filter of %s is active already\n", logins)
	case ok:
		fmt.Fprintf(out, "the login filter of %s was updated to this version\n", logins)
	default:
		fmt.Fprintf(out, "every GPU is closed to %s until gpushared knows which it manages: %s\n", logins, why)
	}
	return nil
}

// loginFilterRequested returns why a login filter is needed; empty: none is. A state that cannot be read may request one:
// access fails closed.
func loginFilterRequested(stateDir string) (why string, err error) {
	st, err := store.Peek(stateDir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil // There was never a spec.
	case errors.Is(err, store.ErrNewerFormat), errors.Is(err, store.ErrOlderFormat):
		return "", err
	case err != nil:
		return "the state cannot be read, and it may request this: " + err.Error(), nil
	case st.Accepted == nil || st.Accepted.Unmanaged != "":
		return "", nil
	}
	s, err := spec.DecodeAccepted("state.json", []byte(st.Accepted.YAML))
	if err != nil {
		return "the accepted spec cannot be read by this version, and it may request this", nil
	}
	s.Normalize()
	want := state.DesiredOf(s, spec.Resolved(st.Accepted.Resolved), st.Accepted.Generation)
	if !want.Enforcing() || !want.FiltersLogins() || !managesAny(s) {
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
