package change

import (
	"errors"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/lease"
)

const keyedSpec = `version: v1
node: {enforce: on}
tenants:
  - name: red
    grants: [{name: jobs, timeslice: {share: 50%, gpu_memory: 12GiB}}]
`

const lessForKeys = `version: v1
node: {enforce: on}
tenants:
  - name: red
    grants: [{name: jobs, timeslice: {share: 50%, gpu_memory: 6GiB}}]
`

// A lease that an engine gets between the plan of a spec and its acceptance keeps what it was promised: the spec is refused as if it had
// been there before. With force the lease has less, as others.
func TestKeyedLeaseBetweenPlanAndAcceptance(t *testing.T) {
	w := newFixture(t)
	w.apply(keyedSpec)
	decode := func(text string) *spec.Document {
		s, err := spec.Decode("f", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return spec.NewDocument("f", []byte(text), s)
	}
	want := w.State.Desired()
	view := lease.View{Generation: want.Generation, GPUs: []lease.GPUView{{UUID: "GPU-0", Mode: api.ModeTimeslice, Capacity: 40 << 30}}}
	view.Grants = []lease.Grant{{Tenant: "red", Spec: want.Spec.Tenants[0].Grants[0]}}
	w.Table.Update(view)
	submit := func(key string, memory uint64) error {
		_, err := w.Table.Submit(lease.Request{
			Tenant: "red", Admin: true, Origin: lease.OriginAttached, Engine: &lease.Engine{Key: key}, Own: lease.Own{Memory: memory},
		})
		return err
	}
	p, err := w.propose(t.Context(), decode(lessForKeys), nil, planner.Authority{})
	if err != nil {
		t.Fatal(err)
	}
	if err := submit("slurm:1", 8<<30); err != nil {
		t.Fatal(err)
	}
	_, err = w.Accept(t.Context(), p, "root", planner.Authority{})
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != api.KindInUse || len(e.Leases) != 1 || !e.Leases[0].Lowers {
		t.Fatalf("the spec is accepted: %v", err)
	}
	if g := w.State.Desired().Generation; g != want.Generation {
		t.Errorf("generation %d is in force", g)
	}
	if err := submit("slurm:2", 4<<30); err != nil {
		t.Errorf("after the refusal a job has less: %v", err)
	}
	force := planner.Authority{Force: true}
	if p, err = w.propose(t.Context(), decode(lessForKeys), nil, force); err != nil {
		t.Fatal(err)
	}
	if _, err = w.Accept(t.Context(), p, "root", force); err != nil {
		t.Errorf("with force: %v", err)
	}
}
