package report

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

const (
	uuid0 = "GPU-f2b04c1e-1234-5678-9abc-def012345678"
	uuid1 = "GPU-00e7a3b2-1234-5678-9abc-def012345678"
)

func named() *Reporter {
	r := NewReporter(slog.New(slog.DiscardHandler), time.Now)
	r.NameGPUs(func(uuid string) (int, bool) {
		i, ok := map[string]int{uuid0: 0, uuid1: 1}[uuid]
		return i, ok
	})
	return r
}

// Whichever part of the daemon reports a GPU by its UUID, people read its index first, and the list is in the order of the tables.
func TestGPUsAreNamedByIndex(t *testing.T) {
	r := named()
	for text, want := range map[string]string{
		"the NUMA node of GPU " + uuid0 + " is unknown":                    "the NUMA node of GPU 0 is unknown",
		"cannot limit " + uuid1 + ": it is lost":                           "cannot limit GPU 1 (" + uuid1 + "): it is lost",
		"GPU 3 of the spec (" + uuid1 + ") was replaced: " + uuid0 + " is": "GPU 3 of the spec (" + uuid1 + ") was replaced: GPU 0 (" + uuid0 + ") is",
		"GPU 0 is lost": "GPU 0 is lost",
		"GPU GPU-11111111-2222-3333-4444-555555555555 fell off the bus": "GPU GPU-11111111-2222-3333-4444-555555555555 fell off the bus",
		"MIG-f2b04c1e-1234-5678-9abc-def012345678 stays":                "MIG-f2b04c1e-1234-5678-9abc-def012345678 stays",
	} {
		r.Conditions.Set("x", text, text, "see "+text)
		got := ""
		for _, c := range r.Conditions.List() {
			if c.ID == (conditionKey{"x", text}).id() {
				got = c.Message
				if c.Hint != "see "+want {
					t.Errorf("the hint is %q", c.Hint)
				}
			}
		}
		events, done := r.Events.Subscribe()
		r.Events.Publish(api.Event{Kind: "x", Message: text})
		if e := <-events.C; got != want || e.Message != want {
			t.Errorf("%q is the condition %q and the event %q, want %q", text, got, e.Message, want)
		}
		done()
	}
	listed := named()
	for _, id := range []string{uuid1, "GPU-lost", uuid0} {
		listed.Conditions.Put("gpu", id, api.Condition{GPU: id, Message: "it is lost"})
	}
	var order []string
	for _, c := range listed.Conditions.List() {
		order = append(order, c.GPU)
	}
	if diff := cmp.Diff([]string{uuid0, uuid1, "GPU-lost"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// What is so on several GPUs for one reason is one line, as long as it is so on one.
func TestOneConditionForSeveralGPUs(t *testing.T) {
	r := named()
	text := func(all []string, most time.Duration) (string, string) {
		out := most.String() + " on"
		for _, id := range all {
			out += " GPU " + id
		}
		return out, "hint"
	}
	check := func(want ...string) {
		t.Helper()
		var got []string
		for _, c := range r.Conditions.List() {
			got = append(got, c.Message)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
	}
	r.Conditions.Together("slow", uuid1, 5*time.Millisecond, text)
	check("5ms on GPU 1")
	r.Conditions.Together("slow", uuid0, 3*time.Millisecond, text)
	check("5ms on GPU 0 GPU 1")
	r.Conditions.NotTogether("slow", uuid1, text)
	check("3ms on GPU 0")
	r.Conditions.NotTogether("slow", uuid0, text)
	r.Conditions.NotTogether("slow", uuid0, text)
	check()
}
