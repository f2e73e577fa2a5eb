package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/systemd"
)

// fakeUnits starts one service, whose program ends when it is stopped, or has ended already.
type fakeUnits struct {
	hangs   bool
	started error
	stopErr error

	runs    bool
	service systemd.Service
	stopped string
}

func (u *fakeUnits) StartService(ctx context.Context, s systemd.Service) error {
	u.service = s
	if u.started != nil {
		return u.started
	}
	if !u.hangs {
		return nil
	}
	u.runs = true
	<-ctx.Done()
	return ctx.Err() // As from systemd, whose job is cancelled: the program goes on.
}

func (u *fakeUnits) StopService(ctx context.Context, name string, _ time.Duration) error {
	u.stopped = name
	if _, bounded := ctx.Deadline(); ctx.Err() != nil || !bounded {
		return errors.New("it has no time to stop")
	}
	if u.stopErr == nil {
		u.runs = false
	}
	return u.stopErr
}

// A program that makes device nodes does not go on when nothing waits for it any more: it is stopped, and its unit has a limit of its own.
func TestDeviceNodesOfACallThatEnded(t *testing.T) {
	failed, stuck := errors.New("exit code 1"), errors.New("it does not end")
	for _, c := range []struct {
		name    string
		units   fakeUnits
		cancels bool // the caller
		want    []error
		stopped bool
		runs    bool
	}{
		{name: "it ends", units: fakeUnits{}},
		{name: "it fails", units: fakeUnits{started: failed}, want: []error{failed}},
		{name: "an earlier one runs", units: fakeUnits{started: systemd.ErrExists}, want: []error{devicepolicy.ErrHelperRuns}},
		{name: "an earlier one runs, and the caller has ended", units: fakeUnits{started: systemd.ErrExists}, cancels: true, want: []error{devicepolicy.ErrHelperRuns}},
		{name: "it hangs", units: fakeUnits{hangs: true}, cancels: true, want: []error{context.Canceled}, stopped: true},
		{name: "it cannot be stopped", units: fakeUnits{hangs: true, stopErr: stuck}, cancels: true, want: []error{context.Canceled, stuck}, stopped: true, runs: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancels {
				cancel()
			}
			u := c.units
			err := unitHelper(&u)(ctx, []string{"/usr/bin/nvidia-modprobe", "-u"})
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			}
			if len(c.want) == 0 && err != nil {
				t.Error(err)
			}
			if (u.stopped == helperService) != c.stopped || u.runs != c.runs {
				t.Errorf("it has stopped %q, and runs %t", u.stopped, u.runs)
			}
			if s := u.service; s.Type != "oneshot" || s.StartTimeout != helperLimit || s.StopTimeout != helperTerm {
				t.Errorf("the unit is %+v", s)
			}
		})
	}
}
