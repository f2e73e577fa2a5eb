package planner

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
)

// What ends for a lease, of each origin, and whether its processes continue: under a spec that observes, one without its grant, an
// unmanage, and steps that stop or disturb it.
func TestLeaseEnds(t *testing.T) {
	has := map[state.GrantKey][]string{{Tenant: "red", Grant: "g"}: nil}
	spec := func(enforce api.OnOff, grants map[state.GrantKey][]string) *state.Desired {
		d := &state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: enforce}}}
		d.Grants = map[state.GrantKey][]gpu.UUID{}
		for k := range grants {
			d.Grants[k] = nil
		}
		return d
	}
	on, observe, without := spec("on", has), spec("observe", has), spec("on", nil)
	unmanaged := spec("observe", has)
	unmanaged.Unmanaged = &api.Unmanaged{}
	run := lease.Lease{
		ID:      "red-1",
		User:    "alice",
		Command: []string{"python", "train.py"},
		Terms:   lease.Grant{Tenant: "red", Spec: api.GrantSpec{Name: "g"}},
	}
	ending := run
	ending.State = lease.Ending
	login := run
	login.Origin = lease.OriginLogin
	stop, moves := []step.Step{stopStep(&run, "the grant was removed")}, []step.Step{
		{
			Text:       "restart MPS",
			Reason:     "its settings change",
			Disruption: step.Running,
			Disturbs:   []step.Subject{step.LeaseOf("red-1", "alice")},
		},
	}
	for _, c := range []struct {
		name      string
		now, want *state.Desired
		l         lease.Lease
		steps     []step.Step
		ends      string // empty: nothing ends
		continues bool
	}{
		{"nothing ends", on, on, run, nil, "", false},
		{"its spec observes", on, observe, run, stop, "enforcement", true},
		{"its spec observes, a login", on, observe, login, nil, "enforcement", true},
		{"it was not enforced before", observe, observe, run, stop, "", false},
		{"stopped", on, without, run, stop, "the grant was removed", false},
		{"disturbed", on, on, run, moves, "restart MPS", false},
		{"a login whose grant is removed", on, without, login, nil, "no longer has grant g of red", true},
		{"a login whose grant was removed before", without, without, login, nil, "", false},
		{"it is ending already", on, observe, ending, nil, "", false},
		{"unmanaged", on, unmanaged, run, stop, "the grant was removed", false},
		{"unmanaged, a login", on, unmanaged, login, nil, "enforcement", true},
	} {
		out := LeaseEnds(c.now, c.want, []lease.Lease{c.l}, c.steps)
		if c.ends == "" {
			if len(out) != 0 {
				t.Errorf("%s: %+v", c.name, out)
			}
			continue
		}
		if len(out) != 1 || !strings.Contains(out[0].Ends, c.ends) || out[0].Continues != c.continues ||
			out[0].Command != "python train.py" {
			t.Errorf("%s: %+v", c.name, out)
			continue
		}
		err := AdmitEnds(c.now, c.want, out, Authority{}, "gpushare apply -f x.yaml")
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Kind != api.KindInUse || len(e.Leases) != 1 ||
			!strings.Contains(e.Hint, "'gpushare apply -f x.yaml --force'") {
			t.Errorf("%s: it is refused with %+v", c.name, err)
		}
		if err := AdmitEnds(c.now, c.want, out, Authority{Force: true}, ""); err != nil {
			t.Errorf("%s: with force it is refused with %v", c.name, err)
		}
	}
}

// A grant that has less than a lease has for itself is refused without force, and the refusal names the lease; a spec that enforces
// nothing takes nothing.
func TestLoweredOwnAmounts(t *testing.T) {
	spec := func(enforce api.OnOff, memory api.Bytes) *state.Desired {
		return &state.Desired{
			Spec: &api.Spec{
				Node: api.NodeSpec{Enforce: enforce},
				Tenants: []api.TenantSpec{{
					Name:   "red",
					Grants: []api.GrantSpec{{Name: "g", Timeslice: &api.ShareSpec{Share: 30, GPUMemory: &memory}}},
				}},
			},
			Grants: map[state.GrantKey][]gpu.UUID{{Tenant: "red", Grant: "g"}: nil},
		}
	}
	on := spec("on", 12<<30)
	own := lease.Own{Memory: 8 << 30}
	job := lease.Lease{
		ID:          "red-1",
		Command:     []string{"slurm-42"},
		Terms:       lease.Grant{Tenant: "red", Spec: on.Spec.Tenants[0].Grants[0]},
		Own:         own,
		OwnTogether: own,
	}
	ending := job
	ending.State = lease.Ending
	for _, c := range []struct {
		name      string
		now, want *state.Desired
		l         lease.Lease
		lowers    bool
	}{
		{"enough", on, spec("on", 8<<30), job, false},
		{"less", on, spec("on", 6<<30), job, true},
		{"nothing was enforced", spec("off", 12<<30), spec("on", 6<<30), job, false},
		{"it ends", on, spec("on", 6<<30), ending, false},
	} {
		out := LeaseEnds(c.now, c.want, []lease.Lease{c.l}, nil)
		if (len(out) == 1) != c.lowers {
			t.Errorf("%s: %+v", c.name, out)
			continue
		}
		if !c.lowers {
			continue
		}
		if !out[0].Lowers || !out[0].Continues || !strings.Contains(out[0].String(), "red-1 (red/g): it keeps 6 GiB of its own 8 GiB") {
			t.Errorf("%s: %s", c.name, out[0].String())
		}
		err := AdmitEnds(c.now, c.want, out, Authority{}, "gpushare apply -f x.yaml")
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Kind != api.KindInUse || len(e.Leases) != 1 ||
			!strings.Contains(e.Message, "takes from leases what they have for themselves") ||
			!strings.Contains(e.Hint, "'gpushare apply -f x.yaml --force'") {
			t.Errorf("%s: it is refused with %+v", c.name, err)
		}
	}
}
