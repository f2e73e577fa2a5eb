package publish_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/publish"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/enumeration"
)

const pool = "node1"

// scheduler is the allocator of the scheduler, and what it has granted.
type scheduler struct {
	t        *testing.T
	cache    *cel.Cache
	features structured.Features
	granted  map[types.UID]*resourceapi.ResourceClaim
}

func newScheduler(t *testing.T) *scheduler {
	f := structured.Features{ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true}
	return &scheduler{t, cel.NewCache(100, cel.Features{EnableConsumableCapacity: true}), f, map[types.UID]*resourceapi.ResourceClaim{}}
}

// List and Get have one class, of all devices of the driver.
func (s *scheduler) List() ([]*resourceapi.DeviceClass, error) {
	c, err := s.Get("gpushare")
	return []*resourceapi.DeviceClass{c}, err
}

func (s *scheduler) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpushare.dev"`}}},
	}}, nil
}

// state is what the claims have that were granted.
func (s *scheduler) state() structured.AllocatedState {
	out := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, c := range s.granted {
		for _, r := range c.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if r.ShareID == nil {
				out.AllocatedDevices.Insert(id)
				continue
			}
			out.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			out.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	return out
}

// grant gives a claim a device, if there is one.
func (s *scheduler) grant(n *publish.Node, c *resourceapi.ResourceClaim) bool {
	s.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool}}
	var list []*resourceapi.ResourceSlice
	published := publish.Resources(n, pool).Pools[pool].Slices
	for i := range published {
		name := pool
		list = append(list, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%03d", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver:         publish.Driver,
				Pool:           resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(published))},
				NodeName:       &name,
				Devices:        published[i].Devices,
				SharedCounters: published[i].SharedCounters,
			},
		})
	}
	a, err := structured.NewAllocator(s.t.Context(), s.features, s.state(), s, list, s.cache)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	result, err := a.Allocate(ctx, node, []*resourceapi.ResourceClaim{c})
	if err != nil {
		s.t.Fatalf("the allocator refuses what is published: %v", err)
	}
	if len(result) == 0 {
		return false
	}
	c.Status.Allocation = &result[0]
	s.granted[c.UID] = c
	return true
}

// claimFor is a claim of one device.
func claimFor(id int, expression string, amounts map[resourceapi.QualifiedName]resource.Quantity) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpushare", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
	}
	if amounts != nil {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: amounts}
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("claim-%d", id), UID: types.UID(fmt.Sprintf("uid-%d", id))},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}},
		}},
	}
}

const attribute = `device.attributes["gpushare.dev"].`

// random is a claim of any kind. profile is that of an instance; empty: it is of another kind.
func (w *world) random(r *rand.Rand, id int) (c *resourceapi.ResourceClaim, profile string) {
	switch r.IntN(10) {
	case 0:
		return claimFor(id, attribute+`type == "gpu"`, nil), ""
	case 1, 2, 3:
		amounts := map[resourceapi.QualifiedName]resource.Quantity{}
		if r.IntN(4) > 0 {
			amounts["memory"] = *resource.NewQuantity(r.Int64N(int64(w.board.Memory.Total)<<20/3)+1, resource.BinarySI)
		}
		if r.IntN(4) > 0 {
			amounts["share"] = *resource.NewQuantity(r.Int64N(40)+1, resource.DecimalSI)
		}
		return claimFor(id, attribute+`type == "timeslice"`, amounts), ""
	}
	profile = w.profiles.GI[r.IntN(len(w.profiles.GI))].Name
	return claimFor(id, attribute+`type == "mig" && `+attribute+fmt.Sprintf("profile == %q", profile), nil), profile
}

// accept does what gpushared does for a claim that was granted: it is an error if package mig or the lease table refuses.
func (w *world) accept(n *publish.Node, c *resourceapi.ResourceClaim) error {
	plan, err := claims.PlanOf(n, pool, c)
	if err != nil {
		return err
	}
	if plan.Request.Instance != "" {
		d := c.Status.Allocation.Devices.Results[0].Device
		for _, o := range publish.Offers(n) {
			if o.Name == d {
				at := o.Placement()
				r, ok := w.plan(o.Profile(), &gpu.Placement{Start: at.Start, Size: at.Size})
				if !ok {
					return fmt.Errorf("package mig has no place for %s", d)
				}
				w.create(r)
			}
		}
	}
	for _, grant := range plan.Grants { // The next grant is asked when one has no place, as in Prepare.
		if err = w.submit("kubernetes", publish.KeyPrefix+string(c.UID)+":0", grant, &plan.Request); err == nil {
			return nil
		}
	}
	return err
}

// submit requests a keyed lease.
func (w *world) submit(tenant, key, grant string, q *api.EngineRequest) error {
	r := lease.Request{
		Tenant: tenant, Grant: grant, Admin: true, Origin: lease.OriginAttached, GPUs: q.GPUs, Instance: q.Instance,
		Engine: &lease.Engine{Key: key, BindBy: time.Now().Add(time.Hour)}, Command: []string{"claim"}, User: "root",
	}
	if q.GPUMemory != nil {
		r.Own.Memory = uint64(*q.GPUMemory)
	}
	if q.Share != nil {
		r.Own.Share = float64(*q.Share)
	}
	k, err := w.table.Submit(r)
	if err != nil {
		return err
	}
	if l, ok := w.table.Get(k.ID()); !ok || l.State != lease.Placed {
		return fmt.Errorf("it has no place at once: %+v", l)
	}
	return nil
}

// local takes an instance or the whole GPU for another tenant, where gpushare places it.
func (w *world) local(r *rand.Rand, id int) {
	key := fmt.Sprintf("slurm:%d", id)
	if r.IntN(5) == 0 {
		_ = w.submit(others, key, "alone", &api.EngineRequest{GPUs: []string{whole}}) // It may be in use.
		return
	}
	i := r.IntN(len(w.profiles.GI))
	w.use()
	p, ok := w.plan(w.profiles.GI[i].Name, nil)
	if !ok || len(p.Create) != 1 {
		return
	}
	w.create(p)
	q := &api.EngineRequest{GPUs: []string{carved}, Instance: fmt.Sprint(p.Create[0].Placement.Start)}
	if err := w.submit(others, key, fmt.Sprintf("mig%d", i), q); err != nil {
		panic("a local lease is refused: " + err.Error())
	}
}

// end ends the lease of a key.
func (w *world) end(t *testing.T, key string) {
	t.Helper()
	l, ok := w.table.Keyed(key)
	if !ok {
		t.Fatalf("%s has no lease", key)
	}
	if _, err := w.table.DropUnbound(t.Context(), l.ID, "released"); err != nil {
		t.Fatal(err)
	}
}

// Whatever the scheduler grants of what is published, next to leases that others have, the planner of instances and the lease table accept.
// What they would accept and the scheduler does not grant is counted.
func TestWhatIsGrantedIsAccepted(t *testing.T) {
	t.Parallel()
	boards, err := board.All()
	if err != nil {
		t.Fatal(err)
	}
	each := 10000/len(boards) + 1
	if enumeration.Sampled() {
		each = 100
	}
	for i, b := range boards {
		t.Run(b.Short, func(t *testing.T) {
			t.Parallel()
			grantAndAccept(t, newWorld(t, b, 100), each, uint64(i), true)
		})
	}
}

// The same where several grants give each device, and their leases are few: what a claim is refused then is not for want of a place.
func TestGrantedWithinTheLeasesOfSeveralGrants(t *testing.T) {
	t.Parallel()
	b, err := board.Find("a100-80")
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(4) {
		w, one := newWorld(t, b, 100), 1 // The other tenant has many leases.
		mine := &w.spec.Tenants[0]
		for i := range mine.Grants {
			if mine.Grants[i].Kind() == api.ModeMIG {
				mine.Grants[i].MaxLeases = &one
				g := mine.Grants[i]
				g.Name += "-more"
				mine.Grants = append(mine.Grants, g)
			}
		}
		mine.Grants = append([]api.GrantSpec{{Name: "pair", Exclusive: 2}}, mine.Grants...)
		w.update()
		grantAndAccept(t, w, 150, seed, false)
	}
}

// grantAndAccept has claims come and go. planned: the scheduler must grant each instance for which package mig has a place.
func grantAndAccept(t *testing.T, w *world, each int, seed uint64, planned bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 33))
	s := newScheduler(t)
	granted, refused, more := 0, 0, 0
	for id := range each {
		if r.IntN(12) == 0 {
			w.local(r, id)
		}
		n := w.node()
		c, profile := w.random(r, id)
		switch {
		case s.grant(n, c):
			granted++
			if err := w.accept(n, c); err != nil {
				t.Fatalf("claim %d: %s was granted: %v", id, c.Status.Allocation.Devices.Results[0].Device, err)
			}
		case planned && profile != "":
			refused++
			w.use()
			if _, ok := w.plan(profile, nil); ok {
				more++
			}
		default:
			refused++
		}
		for uid := range s.granted { // Some end, so that the node is neither empty nor full.
			if r.IntN(7) == 0 {
				w.end(t, publish.KeyPrefix+string(uid)+":0")
				delete(s.granted, uid)
			}
		}
		for _, l := range w.table.Live() {
			if l.Terms.Tenant == others && r.IntN(20) == 0 {
				w.end(t, l.Engine.Key)
			}
		}
	}
	t.Logf("%d claims: %d granted and accepted, %d refused, of which package mig has a place for %d", each, granted, refused, more)
	if granted < each/10 || refused == 0 {
		t.Errorf("%d of %d claims were granted: the test tests nothing", granted, each)
	}
	if more > 0 {
		t.Errorf("the scheduler refuses %d instances for which there is place", more)
	}
}
