package lease

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/rename"
)

// A user whose lease was ended for its memory waits before the next one of that grant: shown, without a claim, over a restart and under
// another name. No other user waits.
func TestTheNextLeaseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := View{
			GPUs:   []GPUView{device(0, "timeslice")},
			Grants: []Grant{timeslice("vision", "dev", 30, 10*gib), timeslice("vision", "other", 30, 10*gib)},
		}
		request := func(tab *Table, grant string, uid int, wait *time.Duration) (*Ticket, error) {
			tenant := tab.view.Grants[0].Tenant
			return tab.Submit(Request{Tenant: tenant, Grant: grant, Member: []string{tenant}, UID: uid, Wait: wait})
		}
		tab := New(Config{Isolation: &fakeIsolation{}})
		tab.Update(v)
		first, err := request(tab, "dev", 1001, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := tab.Start(t.Context(), first.ID(), Process{42, 7}); err != nil {
			t.Fatal(err)
		}
		l, _ := tab.Get(first.ID())
		for range 3 {
			tab.Owed().End(l.Payer(), time.Now())
		}
		if err := tab.Ended(t.Context(), l.ID, ""); err != nil {
			t.Fatal(err)
		}

		b, err := tab.State()
		if err != nil {
			t.Fatal(err)
		}
		tab = New(Config{Isolation: &fakeIsolation{}})
		if err := tab.Restore(b); err != nil {
			t.Fatal(err)
		}
		for i := range v.Grants {
			v.Grants[i].Tenant = "images"
		}
		v.Generation = 2
		tab.Rename(rename.List{{Generation: 2, From: rename.Name{Tenant: "vision"}, To: rename.Name{Tenant: "images"}}}, 2, nil)
		tab.Update(v)

		_, err = request(tab, "dev", 1001, nil)
		until := time.Now().Add(20 * time.Second).Local().Format(time.TimeOnly)
		if err == nil || !strings.Contains(err.Error(), "3 leases") || !strings.Contains(err.Error(), "may start at "+until) {
			t.Fatalf("a request that does not wait: %v", err)
		}
		for name, c := range map[string]struct {
			grant string
			uid   int
		}{"another user": {"dev", 1002}, "another grant": {"other", 1001}} {
			k, err := request(tab, c.grant, c.uid, nil)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			k.Cancel()
		}
		engine, err := tab.Submit(Request{
			Tenant: "images", Grant: "dev", Member: []string{"images"}, UID: 1001, Engine: &Engine{Key: "slurm:1"}, Origin: OriginAttached,
		})
		if err != nil {
			t.Fatalf("the job of an engine, which would run without a lease: %v", err)
		}
		engine.Cancel()

		forever, began := time.Duration(0), time.Now()
		k, err := request(tab, "dev", 1001, &forever)
		if err != nil {
			t.Fatal(err)
		}
		var shown api.Lease
		u, err := k.Await(context.Background(), func(l api.Lease) { shown = l })
		if err != nil || !u.Placed {
			t.Fatalf("%+v, %v", u, err)
		}
		if d := time.Since(began); d != 20*time.Second {
			t.Errorf("it waited for %v", d)
		}
		if !strings.Contains(shown.Waiting, "may start at "+until) || shown.ExpectedStart == nil ||
			!shown.ExpectedStart.Equal(began.Add(20*time.Second)) {
			t.Errorf("while it waited it was shown as %q, expected at %v", shown.Waiting, shown.ExpectedStart)
		}
	})
}
