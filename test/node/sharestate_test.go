package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// halves has two grants with half of the time of GPU 2 each.
const halves = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: timeslice}
tenants:
  - name: red
    grants:
      - {name: part, timeslice: {share: 50%}}
  - name: blue
    grants:
      - {name: part, timeslice: {share: 50%}}
`

// TestAShareIsShownAsMeasured checks what is shown of a share before it was measured, with answers of the driver, while the driver names no
// process although the GPU is busy, and with answers again.
func TestAShareIsShownAsMeasured(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsFreezer(t)
	n := start(t, quick)
	apply(t, n, halves)
	red, _ := busy(t, n, "red")
	busy(t, n, "blue")
	if s := findLease(status(t, n), red).Share; s.State != api.ShareUnmeasured || s.Why == "" || s.Within != nil {
		t.Errorf("a new lease: %+v", s)
	}
	if r := n.CLI(soon(t), "lease", "show", red); r.Code != 0 || !strings.Contains(r.Out, "not measured: ") {
		t.Errorf("lease show exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	awaitShare(t, n, red, "it is never shown as met", func(s *api.LeaseShare) bool {
		return s.State == api.ShareMet && s.Enforced && s.Within != nil && s.Busy != nil
	})
	// 6 is NOT_FOUND: as if no process had used the GPU.
	if err := n.Ctl(soon(t), nil, "fault", "add", "Device*Process*Utilization*", "fail", "--code", "6", "--times", "-1"); err != nil {
		t.Fatal(err)
	}
	awaitShare(t, n, red, "it is shown without an answer", func(s *api.LeaseShare) bool {
		return s.State == api.ShareUnmeasured && strings.Contains(s.Why, "does not say which processes use the GPU") && s.Busy == nil
	})
	if r := n.CLI(soon(t), "explain", red); r.Code != 0 || !strings.Contains(r.Out, "does not say which processes use the GPU") {
		t.Errorf("explain exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
		t.Fatal(err)
	}
	awaitShare(
		t,
		n,
		red,
		"it is not measured again",
		func(s *api.LeaseShare) bool { return s.State != api.ShareUnmeasured && s.Busy != nil },
	)
}

// awaitShare waits until the share of a lease is shown in some way.
func awaitShare(t *testing.T, n *harness.Node, lease, otherwise string, is func(*api.LeaseShare) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var last api.LeaseShare
	err := harness.Await(ctx, 250*time.Millisecond, otherwise, func() (bool, error) {
		l := findLease(status(t, n), lease)
		if l == nil || l.Share == nil {
			return false, errors.New("the lease has no share")
		}
		last = *l.Share
		return is(l.Share), nil
	})
	if err != nil {
		t.Fatalf("%v: %s, %q, enforced %v, busy %v", err, last.State, last.Why, last.Enforced, last.Busy)
	}
}
