package publish_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/kubelet/publish"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
	"github.com/gpushare/gpushare/mig"
)

// world is a node with three GPUs of one board: the first has instances on demand, the second is time-sliced, the third is exclusive. The
// lease table decides on it as in the daemon, and package mig on instances.
type world struct {
	board    *board.Board
	profiles gpu.Profiles
	spec     api.Spec
	table    *lease.Table
	present  []mig.Present
	closures []api.Closure
}

const (
	carved, shared, whole = "GPU-carved", "GPU-shared", "GPU-whole"
	others                = "local" // the other tenant
)

func newWorld(t testing.TB, b *board.Board, maxLeases int) *world {
	t.Helper()
	w := &world{board: b, profiles: b.GPUProfiles()}
	mine, local := api.TenantSpec{Name: "kubernetes"}, api.TenantSpec{Name: others}
	for i := range w.profiles.GI {
		g := api.GrantSpec{Name: fmt.Sprintf("mig%d", i), MIG: w.profiles.GI[i].Name, MaxLeases: &maxLeases}
		mine.Grants, local.Grants = append(mine.Grants, g), append(local.Grants, g)
	}
	memory := api.Bytes(b.Memory.Total << 20 / 2)
	mine.Grants = append(
		mine.Grants,
		api.GrantSpec{Name: "part", Timeslice: &api.ShareSpec{Share: 70, GPUMemory: &memory}},
		api.GrantSpec{Name: "alone", Exclusive: 1},
	)
	local.Grants = append(local.Grants, api.GrantSpec{Name: "alone", Exclusive: 1})
	w.spec.Tenants = []api.TenantSpec{mine, local}
	w.table = lease.New(lease.Config{Isolation: leasetest.NoIsolation{}})
	w.update()
	return w
}

// update gives the lease table what is there.
func (w *world) update() {
	v := lease.View{Generation: 1}
	total := w.board.Memory.Total << 20
	d := lease.GPUView{UUID: carved, Mode: api.ModeMIG, Capacity: total, DynamicProfiles: &w.profiles}
	for i := range w.profiles.GI {
		d.Profiles = append(d.Profiles, profileView(&w.profiles.GI[i]))
	}
	for i := range w.present {
		in := &w.present[i]
		q := w.profile(in.ProfileID)
		d.Instances = append(d.Instances, lease.InstanceView{
			ProfileView: profileView(q),
			Placement:   in.Placement,
			ProfileID:   q.ID,
			UUIDs:       []gpu.UUID{uuidAt(in.Placement)},
			Generation:  uint64(in.ID),
		})
	}
	v.GPUs = []lease.GPUView{
		d,
		{UUID: shared, Index: 1, Mode: api.ModeTimeslice, Capacity: total},
		{UUID: whole, Index: 2, Mode: api.ModeExclusive, Capacity: total},
	}
	for i := range w.spec.Tenants {
		for _, g := range w.spec.Tenants[i].Grants {
			v.Grants = append(v.Grants, lease.Grant{Tenant: w.spec.Tenants[i].Name, Spec: g})
		}
	}
	w.table.Update(v)
}

func uuidAt(at gpu.Placement) gpu.UUID { return gpu.UUID(fmt.Sprintf("MIG-%d-%d", at.Start, at.Size)) }

func profileView(q *gpu.Profile) lease.ProfileView {
	return lease.ProfileView{Name: q.Name, Slices: q.Slices, Memory: q.Memory, Attributes: q.Attributes}
}

func (w *world) profile(id uint32) *gpu.Profile {
	i := slices.IndexFunc(w.profiles.GI, func(q gpu.Profile) bool { return q.ID == id })
	return &w.profiles.GI[i]
}

// plan is where package mig creates one more instance; ok is false if it has no place next to what is in use.
func (w *world) plan(name string, at *gpu.Placement) (mig.Result, bool) {
	i, r := mig.Pick([]mig.Candidate{{Profiles: w.profiles, Present: w.present}}, mig.Request{Name: name, At: at})
	return r, i == 0
}

// create carries a plan out.
func (w *world) create(r mig.Result) {
	for _, d := range r.Destroy {
		w.present = slices.DeleteFunc(w.present, func(p mig.Present) bool { return p.Placement == d.Placement })
	}
	for _, c := range r.Create {
		w.present = append(w.present, mig.Present{Instance: gpu.Instance{
			ID: uint32(len(w.present)) + 1, ProfileID: c.ProfileID, Placement: c.Placement,
			Compute: []gpu.ComputeInstance{{ProfileID: c.Slices, Placement: gpu.Placement{Size: c.Slices}}},
		}})
	}
	w.update()
}

// use marks what leases have.
func (w *world) use() {
	live := w.table.Live()
	for i := range w.present {
		w.present[i].InUse = slices.ContainsFunc(live, func(l lease.Lease) bool {
			return l.Place.Instance != nil && *l.Place.Instance == w.present[i].Placement
		})
	}
}

// node is what the daemon would say.
func (w *world) node() *publish.Node {
	w.use()
	total := w.board.Memory.Total << 20
	s := &api.Status{Node: api.NodeStatus{Enforce: "on", Driver: "580.65.06", Generation: 1}}
	m := &api.MIGStatus{Enabled: true, Dynamic: true}
	d := api.MIGDevice{UUID: carved, Mode: api.ModeMIG, Enabled: true, Width: w.profiles.Width}
	for i := range w.profiles.GI {
		q := &w.profiles.GI[i]
		p := api.MIGProfile{
			ID: q.ID, Name: q.Name, Slices: q.Slices, Memory: q.Memory, SMs: q.SMs, Max: q.Max, Attributes: q.Attributes,
		}
		for _, at := range q.Placements {
			p.Placements = append(p.Placements, api.MIGPlacement(at))
		}
		d.Profiles = append(d.Profiles, p)
	}
	for _, l := range w.table.Live() {
		s.Leases = append(s.Leases, l.Wire())
	}
	for i := range w.present {
		in := &w.present[i]
		x := api.InstanceStatus{Profile: w.profile(in.ProfileID).Name, Placement: api.MIGPlacement(in.Placement)}
		x.UUIDs = []string{string(uuidAt(in.Placement))}
		for _, l := range w.table.Live() {
			if l.Place.Instance != nil && *l.Place.Instance == in.Placement {
				x.Lease = l.ID
			}
		}
		m.Instances = append(m.Instances, x)
		d.Instances = append(d.Instances, api.MIGInstance{
			ProfileID: in.ProfileID, Profile: x.Profile, Placement: x.Placement, InUse: in.InUse, Foreign: in.Foreign,
		})
	}
	model := w.board.Name
	s.GPUs = []api.GPUStatus{
		{
			UUID:     carved,
			PCI:      "00000000:3B:00.0",
			Model:    model,
			Mode:     api.ModeMIG,
			State:    "ok",
			Memory:   api.GPUMemory{Total: total},
			MIG:      m,
			Closures: w.closures,
		},
		{Index: 1, UUID: shared, Model: model, Mode: api.ModeTimeslice, State: "ok", Memory: api.GPUMemory{Total: total}, Grantable: total},
		{Index: 2, UUID: whole, Model: model, Mode: api.ModeExclusive, State: "ok", Memory: api.GPUMemory{Total: total}},
	}
	for i := range w.spec.Tenants {
		ts := api.TenantStatus{Name: w.spec.Tenants[i].Name}
		for j := range w.spec.Tenants[i].Grants {
			g := &w.spec.Tenants[i].Grants[j]
			on := map[string]string{api.ModeMIG: carved, api.ModeTimeslice: shared, api.ModeExclusive: whole}[g.Kind()]
			ts.Grants = append(ts.Grants, api.GrantStatus{Name: g.Name, Kind: g.Kind(), GPUs: []string{on}})
		}
		s.Tenants = append(s.Tenants, ts)
	}
	return &publish.Node{
		Status: s,
		MIG:    &api.MIGList{GPUs: []api.MIGDevice{d}},
		Tenant: &w.spec.Tenants[0],
		Host:   map[string]publish.Host{carved: {PCIeRoot: "pci0000:3a"}},
	}
}
