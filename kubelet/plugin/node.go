package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// Daemon is what is read of gpushared.
type Daemon interface {
	Status(ctx context.Context) (*api.Status, error)
	MIG(ctx context.Context) (*api.MIGList, error)
	Spec(ctx context.Context) (*api.SpecDocument, error)
	Events(ctx context.Context, f func(api.Event)) error
}

// Node reads the node. It may be used by several goroutines.
type Node struct {
	Daemon Daemon
	Tenant string // whose grants are offered
	Root   string // of sysfs: "/" except for tests

	mu    locks.Mutex[locks.Leaf] // guards what follows
	spec  *api.SpecDocument
	hosts map[string]publish.Host
	known map[string]knownMIG  // by UUID of a GPU
	since map[string]time.Time // by UUID: when a GPU became unreadable
}

// knownMIG is what was read last of the instances of a GPU.
type knownMIG struct {
	device api.MIGDevice
	status *api.MIGStatus
}

// Read reads the status and what belongs to it. The spec is read again when its generation changes.
func (x *Node) Read(ctx context.Context) (*publish.Node, error) {
	s, m, err := x.observed(ctx)
	if err != nil {
		return nil, err
	}
	x.complete(s, m)
	n := &publish.Node{Status: s, MIG: m, Host: map[string]publish.Host{}, Failing: x.failing(s)}
	spec, err := x.current(ctx, s.Node.Generation)
	if err != nil {
		return nil, err
	}
	if spec != nil {
		n.Tenant, n.Freezes = tenantOf(spec, x.Tenant), spec.Node.Engine.Freezes(api.OwnerKubernetes)
	}
	for i := range s.GPUs {
		n.Host[s.GPUs[i].UUID] = x.host(&s.GPUs[i])
	}
	return n, nil
}

// Leases are the leases of the node. They are there while no GPU can be read.
func (x *Node) Leases(ctx context.Context) ([]api.Lease, error) {
	s, err := x.Daemon.Status(ctx)
	if err != nil {
		return nil, err
	}
	return s.Leases, nil
}

// mostTorn is how often the node is read again of which two answers do not fit together: a GPU that changes without an end is published
// as it was read last.
const mostTorn = 3

// observed is the status of the node, and its instances with what it can have, of one state: an instance that only one of the answers has
// would be one of no lease.
func (x *Node) observed(ctx context.Context) (s *api.Status, m *api.MIGList, err error) {
	for range mostTorn {
		if m, err = x.instances(ctx); err != nil {
			return nil, nil, err
		}
		// It is read last: a lease has its instance before the list has it as in use.
		if s, err = x.Daemon.Status(ctx); err != nil {
			return nil, nil, err
		}
		if !torn(s, m) {
			break
		}
	}
	return s, m, nil
}

// torn reports whether an instance is in one of the answers alone.
func torn(s *api.Status, m *api.MIGList) bool {
	for i := range m.GPUs {
		d := &m.GPUs[i]
		j := slices.IndexFunc(s.GPUs, func(g api.GPUStatus) bool { return g.UUID == d.UUID })
		if j < 0 || s.GPUs[j].MIG == nil {
			continue // It does not answer any more.
		}
		has := s.GPUs[j].MIG.Instances
		if len(has) != len(d.Instances) || slices.ContainsFunc(d.Instances, func(in api.MIGInstance) bool {
			return !slices.ContainsFunc(has, func(x api.InstanceStatus) bool { return x.Placement == in.Placement })
		}) {
			return true
		}
	}
	return false
}

// instances are the instances of the node and what it can have; none while the driver does not answer.
func (x *Node) instances(ctx context.Context) (*api.MIGList, error) {
	m, err := x.Daemon.MIG(ctx)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == api.KindUnavailable {
		return &api.MIGList{}, nil
	}
	return m, err
}

// complete adds the instances of a GPU that does not answer, and of all while the driver does not: those of before. What is published
// stays, and has the taints that the status says. Without them it would be withdrawn, and the pods on a lost GPU would stay there.
func (x *Node) complete(s *api.Status, m *api.MIGList) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.known == nil {
		x.known = map[string]knownMIG{}
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		j := slices.IndexFunc(m.GPUs, func(d api.MIGDevice) bool { return d.UUID == g.UUID })
		known, before := x.known[g.UUID]
		switch {
		case g.Mode != api.ModeMIG:
			delete(x.known, g.UUID)
		case j >= 0 && g.MIG != nil:
			x.known[g.UUID] = knownMIG{m.GPUs[j], g.MIG}
		case before:
			if j >= 0 {
				m.GPUs = slices.Delete(m.GPUs, j, j+1)
			}
			m.GPUs, g.MIG = append(m.GPUs, known.device), known.status
		}
	}
}

// failing are the GPUs that are unreadable for long.
func (x *Node) failing(s *api.Status) map[string]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.since == nil {
		x.since = map[string]time.Time{}
	}
	return failing(x.since, s)
}

// current is the spec of a generation; nil: there is none yet.
func (x *Node) current(ctx context.Context, generation uint64) (*api.Spec, error) {
	x.mu.Lock()
	spec := x.spec
	x.mu.Unlock()
	if generation == 0 {
		return nil, nil
	}
	if spec == nil || spec.Generation != generation {
		var err error
		if spec, err = x.Daemon.Spec(ctx); err != nil {
			return nil, err
		}
		x.mu.Lock()
		x.spec = spec
		x.mu.Unlock()
	}
	if spec.Spec == nil {
		return nil, fmt.Errorf("cannot read the spec of generation %d: gpushared does not send it as an object", spec.Generation)
	}
	return spec.Spec, nil
}

// tenantOf is the tenant of a name; nil: the spec has none.
func tenantOf(spec *api.Spec, name string) *api.TenantSpec {
	i := slices.IndexFunc(spec.Tenants, func(t api.TenantSpec) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &spec.Tenants[i]
}

// host is where a GPU is in the machine. It does not change while the machine runs.
func (x *Node) host(g *api.GPUStatus) publish.Host {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := publish.BusID(g)
	if h, ok := x.hosts[id]; ok {
		return h
	}
	h := publish.Host{}
	root := deviceattribute.WithFSFromRoot(filepath.Join(cmp.Or(x.Root, "/"), "sys"))
	if a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(id, root); err == nil && a.Value.StringValue != nil {
		h.PCIeRoot = *a.Value.StringValue
	}
	if a, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(
		id,
		deviceattribute.ScalarAttribute,
		root,
	); err == nil &&
		a.Value.IntValue != nil {
		node := int(*a.Value.IntValue)
		h.NUMANode = &node
	}
	if x.hosts == nil {
		x.hosts = map[string]publish.Host{}
	}
	x.hosts[id] = h
	return h
}
