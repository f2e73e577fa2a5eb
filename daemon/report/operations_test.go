package report

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
)

func newOperations() *operations { return &operations{now: time.Now} }

func TestOperationIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperations()
		began := o.Begin("apply-1", "apply", "root", api.Plan{Steps: []api.PlanStep{{ID: 1}}})
		if began.State != "running" || began.Plan.Steps[0].State != "pending" {
			t.Fatalf("it begins as %+v", began)
		}
		got := make(chan api.Operation)
		go func() {
			op, _ := o.Get(t.Context(), "apply-1", began.Version)
			got <- op
		}()
		synctest.Wait()
		select {
		case op := <-got:
			t.Fatalf("nothing changed, and the wait is over: %+v", op)
		default:
		}
		o.Update("apply-1", func(op *api.Operation) { op.Plan.Steps[0].State = "doing" })
		op := <-got
		if op.Version <= began.Version || op.Plan.Steps[0].State != "doing" {
			t.Errorf("the wait gave %+v", op)
		}
		if began.Plan.Steps[0].State != "pending" {
			t.Error("a copy that was given out was changed")
		}
		// An older version is returned at once.
		if op, ok := o.Get(t.Context(), "apply-1", 0); !ok || op.Version == 0 {
			t.Errorf("the call waits for an older version: %+v", op)
		}
		o.End("apply-1", "degraded", &api.Error{Kind: api.KindDegraded, Message: "why"})
		op, ok := o.Get(t.Context(), "apply-1", 1<<60)
		if !ok || op.Finished == nil || op.State != "degraded" || op.Error.Message != "why" {
			t.Errorf("the call waits after the end: %+v", op)
		}
	})
}

func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperations()
		began := o.Begin("apply-1", "apply", "root", api.Plan{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if op, ok := o.Get(ctx, "apply-1", began.Version); !ok || op.Version != began.Version || op.Finished != nil {
			t.Errorf("after the wait it is %+v", op)
		}
		if _, ok := o.Get(t.Context(), "apply-2", 0); ok {
			t.Error("an unknown one is found")
		}
		if op := o.Update("apply-2", func(*api.Operation) { t.Error("an unknown one is changed") }); op.ID != "" {
			t.Errorf("an unknown one is updated: %+v", op)
		}
	})
}

// A list has each operation once, also if an id is used again, and no operation of it changes later.
func TestOperationsAreListed(t *testing.T) {
	o := newOperations()
	if list := o.List(); list == nil || len(list) != 0 {
		t.Errorf("without operations: %#v", list)
	}
	o.Begin("retry-of-2", "retry", "root", api.Plan{})
	o.End("retry-of-2", "done", nil)
	o.Begin(
		"apply-1", "apply", "alice",
		api.Plan{Generation: 7, Steps: []api.PlanStep{{ID: 1, Text: "one"}, {ID: 2, Text: "two"}, {ID: 3}}},
	)
	o.Begin("retry-of-2", "retry", "bob", api.Plan{})
	if again := o.End("retry-of-2", "degraded", &api.Error{Message: "why"}); again.By != "bob" {
		t.Errorf("the end is that of the one before: %+v", again)
	}
	o.Update("apply-1", func(op *api.Operation) { op.Plan.Steps[0].State, op.Plan.Steps[1].State = "done", "doing" })
	list := o.List()
	o.Update("apply-1", func(op *api.Operation) { op.Plan.Steps[1].State = "failed" })
	if len(list) != 2 || list[0].ID != "apply-1" || list[1].ID != "retry-of-2" {
		t.Fatalf("listed: %+v", list)
	}
	first, second := list[0], list[1]
	if first.State != "running" || first.By != "alice" || first.Generation != 7 || first.StepCount != 3 || first.StepsEnded != 1 ||
		first.CurrentStep != "two" ||
		first.Finished != nil {
		t.Errorf("the running one: %+v", first)
	}
	if second.State != "degraded" || second.By != "bob" || second.Error == nil || second.Error.Message != "why" || second.Finished == nil {
		t.Errorf("the ended one: %+v", second)
	}
	if !o.Has("apply-1") || o.Has("apply-2") {
		t.Error("Has does not tell which are there")
	}
}

func TestOperationsAreForgotten(t *testing.T) {
	o := newOperations()
	o.Begin("long", "apply", "root", api.Plan{})
	for i := range 3 * keptOperations {
		id := fmt.Sprint("short-", i)
		o.Begin(id, "apply", "root", api.Plan{})
		o.End(id, "done", nil)
	}
	if len(o.all) > keptOperations+1 {
		t.Errorf("%d operations are kept", len(o.all))
	}
	if _, ok := o.Get(t.Context(), "long", 0); !ok {
		t.Error("one that still runs was forgotten")
	}
	if _, ok := o.Get(t.Context(), fmt.Sprint("short-", 3*keptOperations-1), 0); !ok {
		t.Error("the newest was forgotten")
	}
	if _, ok := o.Get(t.Context(), "short-0", 0); ok {
		t.Error("the oldest was not forgotten")
	}
}

// What the daemon does for leases of members pushes no operation of an administrator out.
func TestOperationsOfOthersAreKept(t *testing.T) {
	o := newOperations()
	o.Begin("apply-1", "apply", "root", api.Plan{})
	o.End("apply-1", "failed", nil)
	for i := range 3 * keptOperations {
		id := fmt.Sprint("dynamic-", i)
		o.Begin(id, "dynamic", "gpushared", api.Plan{})
		o.End(id, "done", nil)
	}
	if _, ok := o.Get(t.Context(), "apply-1", 0); !ok || len(o.all) > keptOperations {
		t.Errorf("the apply is kept: %v, of %d", ok, len(o.all))
	}
}
