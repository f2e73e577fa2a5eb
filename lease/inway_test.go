package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// whoTable is two exclusive GPUs with a lease of each of two tenants, that of speech with a time, and a time-sliced GPU.
func whoTable(t *testing.T, visible, observing bool) (tab *Table, vision, speech Lease) {
	t.Helper()
	many := 4
	tab, _ = table(t, View{
		Generation: 1, StatusVisible: visible, Observing: observing,
		GPUs: []GPUView{device(0, "exclusive"), device(1, "exclusive"), device(2, "timeslice")},
		Grants: []Grant{
			with(exclusive("vision", "one", 1), func(g *Grant) { g.Spec.MaxLeases = &many }),
			timeslice("vision", "dev", 40, 10*gib),
			with(
				low(exclusive("speech", "one", 1)),
				func(g *Grant) { g.Spec.MaxLeases, g.Spec.MaxTime = &many, new(api.Duration(2*time.Hour)) },
			),
			timeslice("speech", "dev", 40, 10*gib),
		},
	})
	for _, tenant := range []string{"vision", "speech"} {
		k, err := tab.Submit(Request{Tenant: tenant, Grant: "one", Member: []string{tenant}, User: "user-of-" + tenant, UID: 1})
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := tab.Start(t.Context(), k.ID(), Process{PID: int(k.sequence) + 1000, Start: 1})
		if err != nil {
			t.Fatal(err)
		}
		if tenant == "vision" {
			vision = l
		} else {
			speech = l
		}
	}
	return tab, vision, speech
}

// A refusal names who has the place, since when and until when, as far as the user may know that, what is free instead, and what
// waiting would do.
func TestRefusalNamesWhoHasThePlace(t *testing.T) {
	for name, c := range map[string]struct {
		visible, observing bool
		request            Request
		says, saysNot      []string
	}{
		"a member":         {request: Request{Member: []string{"vision"}}, says: []string{"MINE of user-of-vision since", "(no time limit)", "a lease of another tenant until", "free now: -t vision --grant dev (timeslice)", "with --wait it would preempt 1 lease of other tenants"}, saysNot: []string{"OTHER", "user-of-speech", "-t speech"}},
		"a member of both": {request: Request{Member: []string{"vision", "speech"}}, says: []string{"OTHER of user-of-speech since", "with --wait it would preempt OTHER of user-of-speech", "-t speech --grant dev"}},
		"all are visible":  {visible: true, request: Request{Member: []string{"vision"}}, says: []string{"OTHER of user-of-speech since"}, saysNot: []string{"-t speech"}},
		"an administrator": {request: Request{Admin: true}, says: []string{"OTHER of user-of-speech since", "MINE of user-of-vision"}},
		// Its answer is read by the users of the engine. What to add to 'gpushare run' is nothing to them.
		"an engine":                  {request: Request{Admin: true, Engine: &Engine{Key: "kubernetes:uid:0"}}, says: []string{"MINE of user-of-vision since", "a lease of another tenant until"}, saysNot: []string{"OTHER", "user-of-speech", "free now", "--wait"}},
		"an engine, all are visible": {visible: true, request: Request{Admin: true, Engine: &Engine{Key: "slurm:1"}}, says: []string{"OTHER of user-of-speech since"}},
		"a node that watches":        {observing: true, request: Request{Member: []string{"vision"}}, says: []string{"MINE of user-of-vision"}, saysNot: []string{"preempt", " until "}},
	} {
		t.Run(name, func(t *testing.T) {
			tab, vision, speech := whoTable(t, c.visible, c.observing)
			r := c.request
			r.Tenant, r.Grant, r.User, r.UID = "vision", "one", "carol", 7
			_, err := tab.Submit(r)
			refusal := (*api.Error)(nil)
			if !errors.As(err, &refusal) || refusal.Kind != api.KindUnavailable {
				t.Fatalf("the request ends with %v", err)
			}
			text := strings.NewReplacer(vision.ID, "MINE", speech.ID, "OTHER").Replace(refusal.Message + " | " + refusal.Hint)
			for _, want := range c.says {
				if !strings.Contains(text, want) {
					t.Errorf("it does not say %q: %s", want, text)
				}
			}
			for _, not := range c.saysNot {
				if strings.Contains(text, not) {
					t.Errorf("it says %q: %s", not, text)
				}
			}
		})
	}
}

// A request that waits has an expected start, or the reason why that is not known.
func TestAWaitHasAnEstimateOrAReason(t *testing.T) {
	wait := func(t *testing.T, tab *Table, tenant string) api.Lease {
		t.Helper()
		k, err := tab.Submit(Request{Tenant: tenant, Grant: "one", Member: []string{tenant}, UID: 7, Wait: queueForever()})
		if err != nil {
			t.Fatal(err)
		}
		return next(t, k).Lease
	}
	tab, vision, speech := whoTable(t, false, false)
	end(t, tab, vision.ID)
	l := wait(t, tab, "speech") // It gets the place.
	if l.State != api.LeasePlaced {
		t.Fatalf("it is %+v", l)
	}
	first := wait(t, tab, "speech")
	if first.ExpectedStart == nil || first.StartUnknown != "" {
		t.Errorf("the first one that waits has %+v", first)
	}
	if len(first.InUseBy) != 2 || first.InUseBy[0].Lease != speech.ID || first.InUseBy[0].Until == nil || first.InUseBy[0].Since == nil {
		t.Errorf("it says that the place is in use by %+v", first.InUseBy)
	}
	if second := wait(
		t,
		tab,
		"speech",
	); second.ExpectedStart != nil ||
		second.StartUnknown != "another request for the same GPUs is ahead of it" {
		t.Errorf("the second one has %+v", second)
	}
	for name, c := range map[string]struct {
		visible, observing bool
		tenant             string
		want               string
	}{
		"a lease of its tenant without a time": {tenant: "vision", want: "it starts when the leases that are stopped for it have ended"},
		"a lease of another tenant":            {tenant: "speech", want: "a lease of another tenant has no time limit"},
		"the same, visible":                    {tenant: "speech", visible: true, want: "of user-of-vision has no time limit"},
		"a node that only observes":            {tenant: "speech", observing: true, want: "the node only observes: no lease is ended at its time"},
	} {
		t.Run(name, func(t *testing.T) {
			tab, vision, speech := whoTable(t, c.visible, c.observing)
			if !c.observing && c.tenant == "speech" {
				end(t, tab, speech.ID)
				if _, err := tab.Submit(
					Request{Tenant: "vision", Grant: "one", Member: []string{"vision"}, User: "user-of-vision"},
				); err != nil {
					t.Fatal(err)
				}
			}
			l := wait(t, tab, c.tenant)
			if l.ExpectedStart != nil || !strings.HasSuffix(l.StartUnknown, c.want) {
				t.Errorf("it says %q, want %q (%s)", l.StartUnknown, c.want, vision.ID)
			}
		})
	}
}
