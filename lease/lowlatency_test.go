package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

func services(gpus ...GPUView) View {
	return View{
		Generation: 1,
		GPUs:       gpus,
		Grants: []Grant{
			lowLatency(timeslice("vision", "chat", 50, gib)), lowLatency(timeslice("speech", "api", 40, gib)),
			timeslice("physics", "train", 100, gib), lowLatency(timeslice("ml", "small", 30, gib)),
		},
	}
}

// More with latency: low than fits is not placed: it waits, or is refused with what is left. Training is not limited by it.
func TestLowLatencyIsAdmittedWhileItFits(t *testing.T) {
	d := device(0, api.ModeTimeslice)
	d.Overcommit = true
	tab, _ := table(t, services(d))
	_, first := mustSubmit(t, tab, "vision", "chat")
	mustSubmit(t, tab, "physics", "train")
	mustSubmit(t, tab, "vision", "chat") // The grant's share is for all its leases together.
	_, err := tab.Submit(Request{Tenant: "speech", Grant: "api", Admin: true, UID: 1001})
	var e *api.Error
	if !errors.As(err, &e) || e.Kind != api.KindUnavailable ||
		!strings.Contains(e.Message, "GPU 0 has 30% of its time left for grants with latency: low, which may have 80% together") {
		t.Fatalf("40%% next to 50%%: %v", err)
	}
	mustSubmit(t, tab, "ml", "small")
	k := queue(t, tab, "speech", "api")
	for _, l := range tab.Live() {
		if l.Terms.Tenant == "vision" {
			if err := tab.Ended(t.Context(), l.ID, "exited"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if l, ok := tab.Get(k.ID()); !ok || l.Place.GPUs[0] != first.Place.GPUs[0] {
		t.Errorf("after the leases of vision ended the request has %+v, %v", l.Place, ok)
	}
}

func TestLowLatencyIsSpread(t *testing.T) {
	tab, _ := table(t, services(device(0, api.ModeTimeslice), device(1, api.ModeTimeslice)))
	_, a := mustSubmit(t, tab, "vision", "chat")
	_, train := mustSubmit(t, tab, "physics", "train") // Now the GPU of the service is the less loaded one.
	_, b := mustSubmit(t, tab, "speech", "api")
	if a.Place.GPUs[0] == train.Place.GPUs[0] || b.Place.GPUs[0] != train.Place.GPUs[0] {
		t.Errorf("chat on %v, training on %v, api on %v", a.Place.GPUs, train.Place.GPUs, b.Place.GPUs)
	}
}

// What can never fit next to the reserved grants is refused at once.
func TestLowLatencyIsInfeasible(t *testing.T) {
	v := services(device(0, api.ModeTimeslice))
	v.Grants[0].Spec.Reserved = true
	tab, _ := table(t, v)
	wait := Request{Tenant: "speech", Grant: "api", Admin: true, UID: 1001, Wait: new(time.Duration(0))}
	_, err := tab.Submit(wait)
	var e *api.Error
	if !errors.As(err, &e) || e.Kind != api.KindInfeasible || e.Hint == "" ||
		!strings.Contains(e.Message, "no GPU that it may use has the 40% that it needs: the reserved grants leave 30% of its time left") {
		t.Errorf("40%% next to 50%% that are reserved: %v", err)
	}
}

// A place that is kept free counts with its latency, and does not take what live leases have.
func TestLowLatencyIsKeptFree(t *testing.T) {
	v := services(device(0, api.ModeTimeslice), device(1, api.ModeTimeslice))
	tab, _ := table(t, v)
	_, l := mustSubmit(t, tab, "vision", "chat")
	v.Generation++
	v.Grants = append([]Grant(nil), v.Grants...)
	v.Grants[1].Spec.Reserved = true
	tab.Update(v)
	if p := tab.reserved[Key{"speech", "api"}]; len(p) != 1 || p[0].GPUs[0] == l.Place.GPUs[0] {
		t.Errorf("the place is kept free at %+v, and the lease of vision is on %v", p, l.Place.GPUs)
	}
	v.Generation++
	v.GPUs = []GPUView{v.GPUs[v.index(l.Place.GPUs[0])]}
	tab.Update(v)
	if p := tab.reserved[Key{"speech", "api"}]; len(p) != 0 || len(tab.Unmet()) != 1 {
		t.Errorf("without another GPU the place is kept free at %+v: %+v", p, tab.Unmet())
	}
}

// A new spec changes running leases as far as it fits.
func TestLowLatencyOfRunningLeasesIsRevised(t *testing.T) {
	v := services(device(0, api.ModeTimeslice))
	v.Grants[1].Spec.Latency = ""
	tab, _ := table(t, v)
	mustSubmit(t, tab, "vision", "chat")
	mustSubmit(t, tab, "speech", "api")
	revise := func(i int, share float64, latency string) api.LeaseShare {
		t.Helper()
		v.Generation++
		v.Grants = append([]Grant(nil), v.Grants...)
		s := *v.Grants[i].Spec.Timeslice
		s.Share = api.Percent(share)
		v.Grants[i].Spec.Timeslice, v.Grants[i].Spec.Latency = &s, latency
		tab.Update(v)
		for _, l := range tab.List() {
			if l.Tenant == v.Grants[i].Tenant {
				return *l.Share
			}
		}
		t.Fatal("the lease has ended")
		return api.LeaseShare{}
	}
	for _, c := range []struct {
		what    string
		grant   int
		share   float64
		latency string
		want    api.LeaseShare
	}{
		{"it is low now, which does not fit: only the share changes", 1, 45, api.LatencyLow, api.LeaseShare{Entitled: 45}},
		{"it fits", 1, 30, api.LatencyLow, api.LeaseShare{Entitled: 30, Latency: "low"}},
		{"its share grows and does not fit: it keeps it", 1, 40, api.LatencyLow, api.LeaseShare{Entitled: 30, Latency: "low"}},
		{"the other one shrinks", 0, 20, api.LatencyLow, api.LeaseShare{Entitled: 20, Latency: "low"}},
		{"now it fits", 1, 60, api.LatencyLow, api.LeaseShare{Entitled: 60, Latency: "low"}},
		{"it is not low any more", 1, 60, "", api.LeaseShare{Entitled: 60}},
	} {
		if got := revise(c.grant, c.share, c.latency); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	var notices []string
	for _, l := range tab.List() {
		notices = append(notices, l.Notices...)
	}
	text := strings.Join(notices, "\n")
	for _, want := range []string{
		"grant api has latency: low now, but that does not fit next to the other grants with it: this lease is without",
		"the share of grant api is 40% now, but that does not fit next to the other grants with latency: low: this lease keeps 30%",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no notice says %q:\n%s", want, text)
		}
	}
}

// A lease with latency: low is placed by stopping leases that have what it needs, as for GPU memory.
func TestLowLatencyPreempts(t *testing.T) {
	v := services(device(0, api.ModeTimeslice))
	v.Grants[0].Preempt, v.Grants[0].Priority, v.Grants[1].Priority = api.PreemptStop, "low", "high"
	tab, _ := table(t, v)
	run, chat := mustSubmit(t, tab, "vision", "chat")
	if _, _, err := tab.Start(t.Context(), run.ID(), Process{42, 7}); err != nil {
		t.Fatal(err)
	}
	queue(t, tab, "speech", "api")
	p := tab.TakePreemptions()
	if len(p) != 1 || len(p[0].Victims) != 1 || p[0].Victims[0].ID != chat.ID {
		t.Errorf("to be stopped: %+v", p)
	}
}

// Of two leases one gives in one spec what the other gets, in whichever order they are.
func TestLowLatencyIsExchanged(t *testing.T) {
	for grows := range 2 {
		v := services(device(0, api.ModeTimeslice))
		set := func(i int, share float64) {
			v.Grants = append([]Grant(nil), v.Grants...)
			s := *v.Grants[i].Spec.Timeslice
			s.Share = api.Percent(share)
			v.Grants[i].Spec.Timeslice, v.Grants[i].Spec.Latency = &s, api.LatencyLow
		}
		set(grows, 20)
		set(1-grows, 60)
		tab, _ := table(t, v)
		mustSubmit(t, tab, "vision", "chat")
		mustSubmit(t, tab, "speech", "api")
		v.Generation++
		set(grows, 60)
		set(1-grows, 20)
		tab.Update(v)
		for _, l := range tab.List() {
			want := 20.0
			if l.Tenant == v.Grants[grows].Tenant {
				want = 60
			}
			if l.Share.Entitled != want {
				t.Errorf("grant %d grows: the lease of %s has %v, want %v: %q", grows, l.Tenant, l.Share.Entitled, want, l.Notices)
			}
		}
	}
}
