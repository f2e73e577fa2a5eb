package devicepolicy

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// mpsEnvironment returns the environment with which a lease uses the control daemon of its GPU. The share limits each of
// its processes. The memory limit applies to each process by itself; for the whole grant the quota of GPU memory enforces
// it.
func (pol *Policy) mpsEnvironment(ctx context.Context, l *lease.Lease) (map[string]string, error) {
	id := l.Place.GPUs[0]
	if st := pol.MPS.Await(ctx, mps.Whole(id)); !st.Healthy() {
		why := "it is not running"
		if st != nil && st.Reason != "" {
			why = st.Reason
		}
		return nil, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot connect to MPS on GPU %s: %s", id, why), Hint: "'gpushare mps list' shows it; an administrator can try 'gpushare gpu retry'"}
	}
	if err := pol.MPS.Admit(mps.Whole(id), l.UID); err != nil {
		return nil, err
	}
	limits := mps.Limits{}
	if s := l.Terms.Spec.MPS; s != nil {
		limits.Threads = float64(s.Share)
		if s.GPUMemory != nil {
			limits.Memory = uint64(*s.GPUMemory)
		}
	}
	list, err := pol.MPS.Environment(mps.Whole(id), limits)
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
