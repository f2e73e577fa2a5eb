package owed

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/internal/rename"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func payer(n int) Payer {
	return Payer{Name: rename.Name{Tenant: "vision", Grant: "dev"}, UID: 1000 + n}
}

// A grace that was used returns slowly, and all of it is used while its payer is on probation.
func TestGraces(t *testing.T) {
	const grace = 10 * time.Second
	var b Accounts
	p := payer(0)
	b.SpendFree(p, 4*time.Second, grace, noon)
	b.SpendExit(p, 20*time.Second, grace, noon)
	for _, c := range []struct {
		after      time.Duration
		free, exit time.Duration
	}{
		{0, 4 * time.Second, grace},
		{20 * time.Second, 2 * time.Second, 8 * time.Second},
		{40 * time.Second, 0, 6 * time.Second},
		{-time.Hour, 4 * time.Second, grace}, // The clock was set back.
	} {
		at := noon.Add(c.after)
		if free, exit := b.Free(p, grace, at), b.Exit(p, grace, at); free != c.free || exit != c.exit {
			t.Errorf("after %v %v and %v are used, want %v and %v", c.after, free, exit, c.free, c.exit)
		}
	}
	if n := b.Free(payer(1), grace, noon); n != 0 {
		t.Errorf("another user has used %v", n)
	}
	b.End(p, noon)
	later := noon.Add(Probation - time.Second)
	if free, exit := b.Free(p, grace, later), b.Exit(p, grace, later); free != grace || exit != grace {
		t.Errorf("on probation %v and %v are used", free, exit)
	}
	if free, exit := b.Free(p, grace, noon.Add(Probation)), b.Exit(p, grace, noon.Add(Probation)); free != 0 || exit != 0 {
		t.Errorf("after it %v and %v are used", free, exit)
	}
}

// Who was ended for memory waits longer each time, and no longer at all after an hour within the limit.
func TestWaits(t *testing.T) {
	var b Accounts
	p, at := payer(0), noon
	if until, n := b.Waits(p, at); n != 0 || !until.IsZero() {
		t.Fatalf("one who was never ended waits until %v", until)
	}
	for i, seconds := range []int{5, 10, 20, 40, 80, 160, 300, 300} {
		want := time.Duration(seconds) * time.Second
		b.End(p, at)
		until, n := b.Waits(p, at)
		if n != i+1 || until.Sub(at) != want {
			t.Fatalf("after %d ends it waits %v, want %v", n, until.Sub(at), want)
		}
		if _, n := b.Waits(p, until); n != 0 {
			t.Fatalf("it waits at %v, when its wait is over", until)
		}
		at = until
	}
	if _, n := b.Waits(p, at.Add(-2*time.Hour)); n != 0 {
		t.Error("a clock that was set back makes it wait longer")
	}
	// Above the limit again the hour begins again, without an end.
	at = at.Add(50 * time.Minute)
	b.Above(p, at)
	at = at.Add(50 * time.Minute)
	b.End(p, at)
	if _, n := b.Waits(p, at); n != 9 {
		t.Errorf("it is the end number %d, want 9: it was above its limit 50 minutes ago", n)
	}
	at = at.Add(Probation)
	b.End(p, at)
	if until, n := b.Waits(p, at); n != 1 || until.Sub(at) != FirstWait {
		t.Errorf("after an hour within the limit it waits %v, for %d ends", until.Sub(at), n)
	}
}

// What is owed is the same after a restart, and under another name.
func TestKept(t *testing.T) {
	var b Accounts
	b.End(payer(0), noon)
	b.SpendFree(payer(1), 5*time.Second, 10*time.Second, noon)
	b.SpendFree(payer(2), time.Second, 10*time.Second, noon.Add(-time.Minute)) // It has returned.
	text, err := json.Marshal(b.List(noon))
	if err != nil {
		t.Fatal(err)
	}
	var list []Account
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 {
		t.Errorf("%d accounts are kept: %s", len(list), text)
	}
	var again Accounts
	again.Restore(list)
	if diff := cmp.Diff(b.List(noon), again.List(noon)); diff != "" {
		t.Error(diff)
	}
	again.Rename(rename.List{{Generation: 1, From: rename.Name{Tenant: "vision"}, To: rename.Name{Tenant: "images"}}})
	p := payer(0)
	p.Tenant = "images"
	if _, n := again.Waits(p, noon); n != 1 {
		t.Error("under its new name it owes nothing")
	}
	if _, n := again.Waits(payer(0), noon); n != 0 {
		t.Error("another tenant of the former name owes something")
	}
}

// The table is bounded, and what is owed now is kept longer than what was owed before.
func TestBounded(t *testing.T) {
	var b Accounts
	for i := range 3 * most {
		b.End(payer(i), noon.Add(time.Duration(i)*time.Millisecond))
	}
	if n := len(b.List(noon)); n > most || n < most*3/4 {
		t.Errorf("%d accounts are kept", n)
	}
	if _, n := b.Waits(payer(3*most-1), noon.Add(time.Duration(3*most)*time.Millisecond)); n != 1 {
		t.Error("the newest is not kept")
	}
	if n := len(b.List(noon.Add(2 * Probation))); n != 0 {
		t.Errorf("%d owe nothing and are kept", n)
	}
}
