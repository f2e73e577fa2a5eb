package claims_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// moved is a gpushared in which a claim has a lease of another place, and the node of it.
type moved struct {
	node     *publish.Node
	released []string
}

func (m *moved) Read(context.Context) (*publish.Node, error) { return m.node, nil }
func (m *moved) Leases(context.Context) ([]api.Lease, error) { return m.node.Status.Leases, nil }
func (*moved) Cgroup(types.UID) string                       { return "/pod" }
func (*moved) Exists(string) bool                            { return true }
func (*moved) EngineDevice(context.Context, string) (json.RawMessage, error) {
	return json.RawMessage(`{"cdiVersion":"0.6.0","kind":"x/y","devices":[{"name":"d","containerEdits":{}}]}`), nil
}

func (m *moved) AttachEngine(_ context.Context, r api.EngineRequest) (*api.LeaseGrant, error) {
	if r.Key == m.node.Status.Leases[0].Engine.Key {
		return nil, &api.Error{Kind: api.KindConflict, Message: "it has another place"}
	}
	return &api.LeaseGrant{Lease: &api.Lease{ID: "l-2", Engine: &api.LeaseEngine{Key: r.Key, Cgroups: []string{"/pod"}}}}, nil
}

func (m *moved) EngineLease(_ context.Context, key string) (*api.Lease, error) {
	if key == m.node.Status.Leases[0].Engine.Key {
		return &m.node.Status.Leases[0], nil
	}
	return nil, &api.Error{Kind: api.KindNotFound}
}

func (m *moved) ReleaseEngine(_ context.Context, key string) (string, error) {
	m.released = append(m.released, key)
	return "l-1", nil
}

// A lease whose processes were ended is remembered before it is released, also where that is because the claim has another place now.
func TestReleaseRemembers(t *testing.T) {
	t.Parallel()
	ended := time.Now()
	m := &moved{node: wholeNode(api.GrantSpec{Name: "one", Exclusive: 1})}
	const key = publish.KeyPrefix + "uid:0"
	m.node.Status.Leases = []api.Lease{{ID: "l-1", Engine: &api.LeaseEngine{Key: key, Kept: true, EndedAt: &ended}}}
	var remembered []string
	p := &claims.Preparer{
		Pool: "node1", Leases: m, Node: m, Pods: m, Files: claims.Files{Dir: t.TempDir()}, Log: slog.New(slog.DiscardHandler),
		Ended: func(l *api.Lease) {
			if len(m.released) > len(remembered) {
				t.Errorf("%s was released before", l.ID)
			}
			remembered = append(remembered, l.Engine.Key)
		},
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "gpu", UID: "uid"}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", UID: "pod"}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: publish.Driver, Pool: "node1", Request: "gpu", Device: "gpu-1"}},
	}}
	if r := p.Prepare(t.Context(), c); r.Err != nil {
		t.Fatal(r.Err)
	}
	if !slices.Equal(m.released, []string{key}) || !slices.Equal(remembered, m.released) {
		t.Errorf("released are %v, and remembered %v", m.released, remembered)
	}
	if err := p.Unprepare(t.Context(), "uid", "team/gpu"); err != nil {
		t.Fatal(err)
	}
	if len(m.released) != 2 || !slices.Equal(remembered, m.released) {
		t.Errorf("after Unprepare released are %v, and remembered %v", m.released, remembered)
	}
}
