package devicepolicy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// controlDaemons are those of MPS, as a lease joins one.
type controlDaemons interface {
	// Await observes the control daemon of a device, and waits for one that runs and does not greet.
	Await(ctx context.Context, on mps.Device) *mps.State
	Admit(on mps.Device, uid int) error
	Environment(on mps.Device, limits mps.Limits) ([]string, error)
}

// deviceOf is what a lease has a share of through MPS.
func deviceOf(l *lease.Lease) mps.Device {
	d := mps.Whole(l.Place.GPUs[0])
	if l.Place.Instance != nil {
		d.Instance = *l.Place.Instance
	}
	return d
}

// limitsOf are the limits of each process of a lease: of its own amounts, or of what its grant has for the leases without them.
func limitsOf(l *lease.Lease) mps.Limits {
	s := l.Terms.Spec.MPS
	if s == nil {
		return mps.Limits{}
	}
	limits := mps.Limits{Threads: l.Share(), Memory: l.Memory()}
	if limits.Threads <= 0 && s.Share > 0 {
		limits.Threads = leastThreads // 0 would be all.
	}
	if limits.Memory > 0 { // MPS has limits of whole MiB.
		limits.Memory = max(limits.Memory&^(mebibyte-1), mebibyte)
	}
	return limits
}

const (
	leastThreads = 1 // percent
	mebibyte     = 1 << 20
)

// mpsEnvironment returns the environment with which a lease uses the control daemon of its GPU or MIG instance. The share limits each of
// its processes. The memory limit applies to each process by itself; for the whole grant the quota of GPU memory enforces
// it.
func (pol *Policy) mpsEnvironment(ctx context.Context, l *lease.Lease) (map[string]string, error) {
	d := deviceOf(l)
	if st := pol.MPS.Await(ctx, d); !st.Healthy() {
		why := "it is not running"
		if st != nil && st.Reason != "" {
			why = st.Reason
		}
		return nil, &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot connect to MPS on %s: %s", d, why),
			Hint:    "'gpushare mps list' shows it; an administrator can try 'gpushare gpu retry'",
		}
	}
	if err := pol.MPS.Admit(d, l.UID); err != nil {
		return nil, err
	}
	list, err := pol.MPS.Environment(d, limitsOf(l))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, kv := range list {
		k, v, _ := strings.Cut(kv, "=")
		out[k] = v
	}
	return out, nil
}

// startNow is a step that starts MPS, with the MIG device that the instance has now: it may have been created by the same change.
func (pol *Policy) startNow(ctx context.Context, s step.Step) (step.Step, bool, error) {
	var args mps.StartArgs
	if err := json.Unmarshal(s.Args, &args); err != nil {
		return s, false, fmt.Errorf("cannot read the step: %w", err)
	}
	d := args.Settings.Device()
	if !d.IsInstance() {
		return s, true, nil
	}
	g, ok := pol.Observer.Observe(ctx).GPU(d.GPU)
	if !ok || g.Err != nil {
		return s, false, fmt.Errorf("cannot read %s", d)
	}
	in := g.InstanceAt(d.Instance)
	if in == nil || len(in.Compute) != 1 || in.Compute[0].UUID == "" {
		return s, false, fmt.Errorf("cannot start MPS on %s: it has no MIG device", d)
	}
	args.Settings.MIG = in.Compute[0].UUID
	s.Args = step.Must(args)
	return s, true, nil
}
