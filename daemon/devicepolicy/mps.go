package devicepolicy

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// mpsEnvironment is what joins a lease to the control daemon of its GPU. Its share is a ceiling for each of its
// processes; its memory limit holds for each process by itself, and for the grant by the ladder.
func (pol *Policy) mpsEnvironment(ctx context.Context, l *lease.Lease) (map[string]string, error) {
	id := l.Place.GPUs[0]
	if st := pol.MPS.Observe(ctx, id); !st.Healthy() {
		why := "it does not run"
		if st != nil && st.Reason != "" {
			why = st.Reason
		}
		return nil, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot join MPS on GPU %s: %s", id, why), Hint: "'gpushare mps list' shows it; an administrator can try 'gpushare gpu retry'"}
	}
	limits := mps.Limits{}
	if s := l.Terms.Spec.MPS; s != nil {
		limits.Threads = float64(s.Share)
		if s.GPUMemory != nil {
			limits.Memory = uint64(*s.GPUMemory)
		}
	}
	list, err := pol.MPS.Environment(id, limits)
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
