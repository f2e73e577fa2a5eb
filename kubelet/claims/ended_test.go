package claims_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// history is a gpushared with the leases that it has, and those that it had, by key.
type history struct {
	claims.Leases
	live    []api.Lease
	had     map[string]api.Lease
	down    error
	reading func() // while the leases are read
}

func (*history) Read(context.Context) (*publish.Node, error) { return nil, errors.New("not read") }

// readLeases are what the driver reads of it.
type readLeases struct{ *history }

func (r readLeases) Leases(context.Context) ([]api.Lease, error) {
	if r.reading != nil {
		r.reading()
	}
	return r.live, r.down
}

func (h *history) EngineLease(_ context.Context, key string) (*api.Lease, error) {
	if l, ok := h.had[key]; ok {
		return &l, nil
	}
	return nil, &api.Error{Kind: api.KindNotFound}
}

// The file of a claim without a lease is removed, with the name of the claim and the reason of its last lease. It is kept while gpushared
// does not answer, if the claim has a lease by now, and while the kubelet changes the claim.
func TestRemoveEnded(t *testing.T) {
	t.Parallel()
	files := claims.Files{Dir: t.TempDir()}
	write := func(claim types.UID) {
		t.Helper()
		document := json.RawMessage(`{"cdiVersion":"0.6.0","kind":"x/y","devices":[{"name":"d","containerEdits":{}}]}`)
		if err := files.Write(claim, document); err != nil {
			t.Fatal(err)
		}
	}
	lease := func(key, reason string, ended time.Time) api.Lease {
		return api.Lease{Command: []string{"team/gpu"}, Reason: reason, Ended: &ended, Engine: &api.LeaseEngine{Key: key, Kept: true}}
	}
	began := time.Now()
	h := &history{had: map[string]api.Lease{
		"kubernetes:uid:1": lease("kubernetes:uid:1", "stopped by root", began.Add(-time.Minute)),
		"kubernetes:uid:3": lease("kubernetes:uid:3", "its time is over", began.Add(-time.Second)),
		"kubernetes:uid:4": lease("kubernetes:uid:4", "the one before", began.Add(-time.Hour)),
	}}
	p := &claims.Preparer{Leases: h, Node: readLeases{h}, Files: files, Log: slog.New(slog.DiscardHandler)}
	remove := func(when string, known []api.Lease, want ...claims.Ended) {
		t.Helper()
		got, err := p.RemoveEnded(t.Context(), known)
		if (err != nil) != (h.down != nil) || !slices.Equal(got, want) {
			t.Errorf("%s: removed are %+v, not %+v: %v", when, got, want, err)
		}
		left, err := files.Claims()
		if err != nil || len(left) != 1-len(want) {
			t.Errorf("%s: left are the files of %v: %v", when, left, err)
		}
	}
	write("uid")
	live := []api.Lease{lease("kubernetes:uid:2", "", began)}
	remove("with a lease", live)
	h.live = live
	remove("with a lease by now", nil)
	h.live, h.down = nil, errors.New("it does not answer")
	remove("without an answer", nil)
	h.down = nil
	remove("after its end", nil, claims.Ended{Claim: "uid", Name: "team/gpu", Reason: "its time is over", At: began.Add(-time.Second)})
	// One change of a claim at a time: while its leases are read another one leaves it alone.
	write("uid")
	h.reading = func() {
		h.reading = nil
		remove("while it is changed", nil)
	}
	if got, err := p.RemoveEnded(t.Context(), nil); err != nil || len(got) != 1 {
		t.Errorf("removed are %v: %v", got, err)
	}
}
