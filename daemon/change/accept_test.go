package change

import (
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

const sharedSpec = `version: v1
node: {enforce: on, isolation: {migration: deny}}
tenants:
  - {name: red, memory: {max: 1GiB}}
  - {name: blue, memory: {max: 2GiB}}
`

// An accepted change is recorded, carried out and closed: the record is removed, the spec stays, and the loop converges last.
func TestAcceptAndClose(t *testing.T) {
	w := newFixture(t)
	var wakes atomic.Int64
	w.Wake = func() { wakes.Add(1) }
	op := w.apply(sharedSpec)
	if wakes.Load() == 0 {
		t.Error("the loop is not woken: what it could not compare during the change waits for its interval")
	}
	stored := w.State.Stored()
	if op == nil || op.State != "done" || len(stored.Change) != 0 || w.State.Changing() != nil || w.State.Desired().Generation != 1 ||
		!stored.ActiveRestrictions {
		t.Fatalf("it ended as %+v; on disk is %+v", op, stored)
	}
	if got := strings.Join(w.port.Names(), " "); !strings.Contains(got, "red") || !strings.Contains(got, "blue") ||
		w.idleConverger.ends.Load() != 1 {
		t.Errorf("the slices are %s, and the loop converged %d times", got, w.idleConverger.ends.Load())
	}
	writes := w.port.Writes()
	if op := w.apply(sharedSpec); op != nil || w.port.Writes() != writes {
		t.Errorf("the second apply gives %+v, with %d writes", op, w.port.Writes()-writes)
	}
}

// What the denial of migration costs users is said when the default denies it, not when the spec asks for it.
func TestDefaultMigrationIsWarnedOf(t *testing.T) {
	for _, c := range []struct {
		name, isolation string
		denied, warned  bool
	}{
		{"default", "", true, true},
		{"chosen", ", isolation: {migration: deny}", true, false},
		{"detected", ", isolation: {migration: detect}", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			text := strings.Replace(sharedSpec, ", isolation: {migration: deny}", c.isolation, 1)
			for _, want := range []bool{c.warned, false} { // Once is enough.
				s, err := spec.Decode("node.yaml", []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				p, err := w.propose(t.Context(), spec.NewDocument("node.yaml", []byte(text), s), nil, planner.Authority{})
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Contains(strings.Join(p.Plan.Warnings, "\n"), "rootless podman"); got != want {
					t.Errorf("warned: %v, want %v: %q", got, want, p.Plan.Warnings)
				}
				w.apply(text)
			}
			if denied, err := w.port.Policy.MigrationDenied(); denied != c.denied || err != nil {
				t.Errorf("denied: %v, %v", denied, err)
			}
		})
	}
}

// A failed step of the node is reported with its outcome, and the change is closed.
func TestAChangeThatFailsOnTheNode(t *testing.T) {
	for _, c := range []struct {
		name, before, after, hint string
	}{
		{"granting", "", sharedSpec, "failed steps of the node were not undone;"},
		{"revoking", sharedSpec, strings.Replace(sharedSpec, "max: 1GiB", "max: 512MiB", 1), "failed steps were undone;"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			if c.before != "" {
				w.apply(c.before)
			}
			w.port.BreakOnce(cgroup.SliceName{Tenant: "red"}, errors.New("broken"))
			op := w.apply(c.after)
			if op == nil || op.State != "degraded" || op.Error == nil || !strings.HasPrefix(op.Error.Hint, c.hint) ||
				!strings.Contains(op.Error.Message, "broken") {
				t.Fatalf("it ended as %+v, %v", op, op.Error)
			}
			if len(w.State.Stored().Change) != 0 || w.State.Changing() != nil {
				t.Error("the change is still open")
			}
		})
	}
}

// The policy that denies moving processes is removed by one step, with and without --all.
func TestUnmanageRemovesThePolicyOnce(t *testing.T) {
	for _, what := range []string{store.UnmanagedRestrictions, store.UnmanagedAll} {
		w := newFixture(t)
		w.apply(sharedSpec)
		if denied, err := w.port.Policy.MigrationDenied(); !denied || err != nil {
			t.Fatalf("moving is denied: %v, %v", denied, err)
		}
		p, err := w.unmanaging.Propose(t.Context(), what, "root")
		if err != nil {
			t.Fatal(err)
		}
		var of []step.Step
		for _, s := range p.Steps {
			if s.Kind == planner.KindMigration {
				of = append(of, s)
			}
		}
		if len(of) != 1 || of[0].Kind != planner.KindMigration || of[0].Reason != "the node is unmanaged" {
			t.Errorf("unmanage of %s: the steps for the policy are %+v", what, of)
		}
		op := w.carriedOut(p)
		if denied, err := w.port.Policy.MigrationDenied(); denied || err != nil || op == nil || op.State != "done" ||
			w.State.Stored().ActiveRestrictions {
			t.Errorf("unmanage of %s: moving is denied: %v, %v; it ended as %+v", what, denied, err, op)
		}
	}
}

// While the policy cannot be read, unmanage is refused.
func TestUnmanageWithAPolicyThatCannotBeRead(t *testing.T) {
	w := newFixture(t)
	w.apply(sharedSpec)
	w.port.Policy.Set(true, errors.New("it is a directory"))
	if _, err := w.unmanaging.Propose(t.Context(), store.UnmanagedAll, "root"); err == nil ||
		!strings.Contains(err.Error(), "it is a directory") {
		t.Errorf("it gives %v", err)
	}
}

// An unmanage change that the last run of the daemon left open is resumed.
func TestOpenUnmanageIsResumed(t *testing.T) {
	w := newFixture(t)
	w.port.Policy.Set(true, nil)
	r := engine.Record{ID: "unmanage-7", Kind: state.KindUnmanage, By: "root", Generation: 3, Steps: []step.Step{
		{
			ID:    1,
			Kind:  planner.KindMigration,
			Phase: step.GrantAccess,
			Args:  step.Must(planner.MigrationArgs{}),
			Undo:  step.Must(planner.MigrationArgs{Deny: true}),
		},
	}}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.State.Store.Update(func(s *store.State) error { s.Change = b; return nil }); err != nil {
		t.Fatal(err)
	}
	w.Observer.Observe(t.Context())
	w.Resume(t.Context())
	w.Tasks.Wait()
	denied, err := w.port.Policy.MigrationDenied()
	if op := w.operation("unmanage-7"); denied || err != nil || op.State != "done" || len(w.State.Stored().Change) != 0 {
		t.Errorf("moving is denied: %v, %v; it ended as %+v", denied, err, op)
	}
	// Without undo data the policy stays.
	handler := devicepolicy.MigrationPolicy{Port: w.port}
	if err := handler.Undo(
		t.Context(), step.Step{Kind: planner.KindMigration, Args: step.Must(planner.MigrationArgs{Deny: true})},
	); err != nil {
		t.Error(err)
	}
}
