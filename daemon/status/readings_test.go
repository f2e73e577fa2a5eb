package status

import (
	"errors"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/gpu"
)

// What the sensors of a GPU said before it stopped to answer is not what they say.
func TestSensorsOnlyOfAGPUThatAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(p *statusInputs)
		want bool
	}{
		"it answers":    {func(*statusInputs) {}, true},
		"it is lost":    {func(p *statusInputs) { p.node.GPUs[2].Err = gpu.ErrLost }, false},
		"another one":   {func(p *statusInputs) { p.node.GPUs[1].Err = gpu.ErrLost }, true},
		"no driver":     {func(p *statusInputs) { p.node.DriverErr = errors.New("no driver") }, false},
		"nothing known": {func(p *statusInputs) { p.sensors = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := twoTenants()
			p.sensors = func(gpu.UUID) *api.Sensors { return &api.Sensors{ReadAt: p.now, Temperature: new(48)} }
			c.set(p)
			if got := p.render().GPUs[2].Sensors; (got != nil) != c.want {
				t.Errorf("it shows %+v", got)
			}
		})
	}
}

// usedInstances is a node on which each instance was busy in the last 10 s, and with leases of mine and theirs that run for an hour.
func usedInstances() *statusInputs {
	p := twoTenants()
	p.instanceUse = func(_ gpu.UUID, gi uint32) (use *api.InstanceUse, lease string) {
		lease = "lease-mig-theirs"
		if gi == p.node.GPUs[0].Instances[0].ID {
			lease = "lease-mig-mine"
		}
		return &api.InstanceUse{Busy: new(40.0), IntervalSeconds: 10, ReadAt: p.now.Add(-time.Second)}, lease
	}
	for i := range p.leases {
		if l := &p.leases[i]; l.State == api.LeaseRunning {
			l.Started = new(p.now.Add(-time.Hour))
		}
	}
	return p
}

// find is a lease of the node.
func (p *statusInputs) find(id string) *api.Lease {
	for i := range p.leases {
		if p.leases[i].ID == id {
			return &p.leases[i]
		}
	}
	return nil
}

// What happened in an instance is shown to the leases that had it for the whole interval: a part of it was of others otherwise.
func TestWhoSeesTheUseOfAnInstance(t *testing.T) {
	const mine = "lease-mig-mine"
	share := func(p *statusInputs) { // theirs is in the first instance too, which is split
		p.find("lease-mig-theirs").Devices = p.find(mine).Devices
		in := &p.node.GPUs[0].Instances[0]
		in.Compute = append(in.Compute, gpu.ComputeInstance{UUID: "MIG-0-1", ID: 1})
	}
	ago := func(d time.Duration, p *statusInputs) *time.Time { return new(p.now.Add(-d)) }
	for name, c := range map[string]struct {
		set             func(p *statusInputs)
		instance, lease bool // what a member sees
		ofLease         bool // that its lease has a use, for an administrator
	}{
		"for an hour": {set: func(*statusInputs) {}, instance: true, lease: true, ofLease: true},
		"since just before the interval": {
			set:      func(p *statusInputs) { p.find(mine).Started = ago(11*time.Second, p) },
			instance: true, lease: true, ofLease: true,
		},
		"since the interval began": {set: func(p *statusInputs) { p.find(mine).Started = ago(10*time.Second, p) }},
		"not started":              {set: func(p *statusInputs) { p.find(mine).Started = nil }},
		"free":                     {set: func(p *statusInputs) { p.find(mine).Devices = nil }},
		"shared":                   {set: share, instance: true},
		"shared, and theirs is new": {
			set:      func(p *statusInputs) { share(p); p.find("lease-mig-theirs").Started = ago(time.Second, p) },
			instance: true,
		},
		"shared until now": {
			set: func(p *statusInputs) {
				use := p.instanceUse
				p.instanceUse = func(id gpu.UUID, gi uint32) (*api.InstanceUse, string) { u, _ := use(id, gi); return u, "" }
			},
			instance: true,
		},
		"shared, and mine is new": {set: func(p *statusInputs) { share(p); p.find(mine).Started = ago(time.Second, p) }},
		"everybody sees who has what": {
			set:      func(p *statusInputs) { p.desired.Spec.Node.StatusVisible = api.StatusVisibleAll },
			instance: true, lease: true, ofLease: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := usedInstances()
			c.set(p)
			full := p.render()
			if got := p.find(mine).Use != nil; got != c.ofLease {
				t.Errorf("the lease has the use: %v", got)
			}
			if full.GPUs[0].MIG.Instances[0].Use == nil {
				t.Error("an administrator does not see the use of the instance")
			}
			s := restrictTo(full, &server.Caller{Peer: &server.Peer{UID: servertest.UidAlice}, Tenants: []string{"mine"}})
			list := s.GPUs[0].MIG.Instances
			if got := list[0].Use != nil; got != c.instance {
				t.Errorf("a member sees the use of the instance: %v", got)
			}
			if list[1].Use != nil {
				t.Error("a member sees the use of the instance of another tenant")
			}
			for i := range s.Leases {
				if l := &s.Leases[i]; (l.Use != nil) != (l.ID == mine && c.lease) {
					t.Errorf("%s shows the use %v", l.ID, l.Use)
				}
			}
		})
	}
}
