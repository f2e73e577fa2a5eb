package plugin

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"

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
}

// Read reads the status and what belongs to it. The spec is read again when its generation changes.
func (x *Node) Read(ctx context.Context) (*publish.Node, error) {
	s, err := x.Daemon.Status(ctx)
	if err != nil {
		return nil, err
	}
	m, err := x.Daemon.MIG(ctx)
	if err != nil {
		return nil, err
	}
	n := &publish.Node{Status: s, MIG: m, Host: map[string]publish.Host{}}
	if n.Tenant, err = x.tenant(ctx, s.Node.Generation); err != nil {
		return nil, err
	}
	for i := range s.GPUs {
		n.Host[s.GPUs[i].UUID] = x.host(&s.GPUs[i])
	}
	return n, nil
}

// tenant is the tenant whose grants are offered; nil: the spec has none of this name.
func (x *Node) tenant(ctx context.Context, generation uint64) (*api.TenantSpec, error) {
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
	i := slices.IndexFunc(spec.Spec.Tenants, func(t api.TenantSpec) bool { return t.Name == x.Tenant })
	if i < 0 {
		return nil, nil
	}
	return &spec.Spec.Tenants[i], nil
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
