package plugin

import (
	"context"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// changing is a node on which an instance is created between two answers.
type changing struct {
	watched
	instances int // how many there are after the next answer
	lists     int
}

func (c *changing) MIG(context.Context) (*api.MIGList, error) {
	d := api.MIGDevice{UUID: "GPU-0"}
	for i := range c.instances {
		d.Instances = append(d.Instances, api.MIGInstance{Placement: api.MIGPlacement{Start: uint32(i), Size: 1}, InUse: true})
	}
	c.lists++
	if c.lists == 1 {
		c.instances++
	}
	return &api.MIGList{GPUs: []api.MIGDevice{d}}, nil
}

func (c *changing) Status(context.Context) (*api.Status, error) {
	m := &api.MIGStatus{}
	for i := range c.instances {
		m.Instances = append(m.Instances, api.InstanceStatus{Placement: api.MIGPlacement{Start: uint32(i), Size: 1}, Lease: "of-a-claim"})
	}
	return &api.Status{GPUs: []api.GPUStatus{{UUID: "GPU-0", Mode: api.ModeMIG, MIG: m}}}, nil
}

// The answers that a node is published from are of one state, and what is kept for the time in which a GPU is lost too. A node whose
// answers never are is read all the same.
func TestTheNodeIsReadAsOneState(t *testing.T) {
	for name, c := range map[string]struct {
		daemon Daemon
		torn   bool
	}{
		"an instance is created between the answers": {&changing{}, false},
		"they never fit together":                    {&neverWhole{}, true},
	} {
		n, err := (&Node{Daemon: c.daemon, Root: t.TempDir()}).Read(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if torn(n.Status, n.MIG) != c.torn {
			t.Errorf("%s: the status has %+v, the list %+v", name, n.Status.GPUs[0].MIG, n.MIG.GPUs[0])
		}
	}
}

// neverWhole has one instance more in each answer.
type neverWhole struct{ changing }

func (n *neverWhole) MIG(ctx context.Context) (*api.MIGList, error) {
	n.lists = 0
	return n.changing.MIG(ctx)
}
