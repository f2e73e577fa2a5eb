package claims_test

import (
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// wholeNode has two exclusive GPUs, which all the grants reach.
func wholeNode(grants ...api.GrantSpec) *publish.Node {
	gpus := []string{"GPU-0", "GPU-1"}
	s := &api.Status{Node: api.NodeStatus{Enforce: "on"}}
	for i, id := range gpus {
		s.GPUs = append(s.GPUs, api.GPUStatus{Index: i, UUID: id, Mode: api.ModeExclusive, State: "ok"})
	}
	t := api.TenantStatus{Name: "kubernetes"}
	for _, g := range grants {
		t.Grants = append(t.Grants, api.GrantStatus{Name: g.Name, GPUs: gpus})
	}
	s.Tenants = []api.TenantStatus{t}
	return &publish.Node{Status: s, MIG: &api.MIGList{}, Tenant: &api.TenantSpec{Name: "kubernetes", Grants: grants}}
}

func claimOf(devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "gpu", UID: "uid"}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(
			c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Driver: publish.Driver, Pool: "node", Device: d},
		)
	}
	return c
}

// The grant of a claim has as many GPUs as the claim, whatever the order of the grants in the spec is.
func TestGrantOfAsManyGPUs(t *testing.T) {
	t.Parallel()
	pair, alone := api.GrantSpec{Name: "pair", Exclusive: 2}, api.GrantSpec{Name: "alone", Exclusive: 1}
	second := api.GrantSpec{Name: "second", Exclusive: 1}
	for _, grants := range [][]api.GrantSpec{{pair, alone, second}, {alone, pair, second}, {alone, second, pair}} {
		n := wholeNode(grants...)
		p, err := claims.PlanOf(n, "node", claimOf("gpu-0"))
		if err != nil || !slices.Equal(p.Grants, []string{"alone", "second"}) {
			t.Errorf("a claim of one GPU is of %v: %v", p, err)
		}
		p, err = claims.PlanOf(n, "node", claimOf("gpu-0", "gpu-1"))
		if err != nil || !slices.Equal(p.Grants, []string{"pair"}) {
			t.Errorf("a claim of two GPUs is of %v: %v", p, err)
		}
	}
	n := wholeNode(pair)
	if o := publish.Offers(n); len(o) != 0 {
		t.Errorf("without a grant of one GPU %d are offered: no claim of one could be prepared", len(o))
	}
	if _, err := claims.PlanOf(n, "node", claimOf("gpu-0")); err == nil || !strings.Contains(err.Error(), "not on this node any more") {
		t.Errorf("a claim of a GPU that is not offered is answered with %v", err)
	}
}

// Parameters that nothing carries out are refused. Those of another driver are its own.
func TestParametersAreRefused(t *testing.T) {
	t.Parallel()
	n := wholeNode(api.GrantSpec{Name: "alone", Exclusive: 1})
	for driver, refused := range map[string]bool{publish.Driver: true, "net.example": false} {
		c := claimOf("gpu-0")
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{
			{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver},
			}},
		}
		_, err := claims.PlanOf(n, "node", c)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "has parameters for") {
			t.Errorf("parameters for %s are answered with %v", driver, err)
		}
	}
}
