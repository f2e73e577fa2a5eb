package quota

import (
	"testing"
	"time"
)

// What a lease owed and what was learned of it are those of the next lease of its payer: also after the GPU had no lease, and without a
// trial. Of another payer, and after ten minutes, they are not.
func TestTheNextLeaseGoesOn(t *testing.T) {
	const ran = 100 * time.Second
	for name, c := range map[string]struct {
		payer   string
		away    time.Duration
		another bool // scheduler, in between
		goesOn  bool
	}{
		"at once":           {"red", 0, false, true},
		"after a second":    {"red", time.Second, false, true},
		"on an empty GPU":   {"red", time.Second, true, true},
		"another payer":     {"blue", 0, false, false},
		"after ten minutes": {"red", 10*time.Minute + time.Second, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewScheduler(Config{})
			s.SetMembers(ran, []Member{{Lease: "a", Grant: "g", Payer: "red", Share: 10, Active: true}})
			was := s.find("a")
			was.demand.class, was.demand.trials, was.deficit, was.weight = heavy, 3, -2*time.Second, 0.1
			s.SetMembers(ran, nil)
			if c.another {
				left := s.Leave(ran)
				if s = NewScheduler(Config{}); len(s.members) != 0 {
					t.Fatal("a new scheduler has leases")
				}
				s.Continue(left)
			}
			s.SetMembers(ran+c.away, []Member{{Lease: "b", Grant: "g", Payer: c.payer, Share: 10, Active: true}})
			m := s.find("b")
			debt := time.Duration(0)
			if c.goesOn {
				debt = 2*time.Second - c.away/10
			}
			if goesOn := m.demand.class == heavy; goesOn != c.goesOn || m.deficit != -debt {
				t.Errorf("it is %v with a debt of %v, want one of %v", m.demand.class, -m.deficit, debt)
			}
			if u := usageOf(t, s, ran+c.away, "b"); u.Occupancy != 0 || u.Since != ran+c.away {
				t.Errorf("its use is that of the lease before: %+v", u)
			}
		})
	}
}

// A lease that begins next to another one of its payer that keeps the GPU busy is taken for one that does, until it is seen what it does.
func TestASecondLeaseOfAPayer(t *testing.T) {
	s := NewScheduler(Config{})
	a := Member{Lease: "a", Grant: "g", Payer: "red", Share: 10, Active: true}
	s.SetMembers(0, []Member{a})
	s.find("a").demand.class = heavy
	s.SetMembers(time.Second, []Member{
		a,
		{Lease: "b", Grant: "g", Payer: "red", Share: 10, Active: true},
		{Lease: "c", Grant: "g", Payer: "blue", Share: 10, Active: true},
		{Lease: "d", Grant: "g", Payer: "red", Share: 10, Active: true, LowLatency: true},
	})
	for lease, want := range map[string]class{"a": heavy, "b": heavy, "c": measured, "d": light} {
		if got := s.find(lease).demand.class; got != want {
			t.Errorf("%s is %v, want %v", lease, got, want)
		}
	}
}

// What is kept is bounded, the lease that owes most goes on first, and the many leases of one payer do not end what another one owes.
func TestKeptPayersAreBounded(t *testing.T) {
	s := NewScheduler(Config{})
	s.leave(&member{Member: Member{Payer: "blue"}, deficit: -time.Second})
	for i := range 3 * mostKept {
		m := &member{Member: Member{Payer: "red"}, deficit: -time.Duration(i) * time.Millisecond}
		s.leave(m)
	}
	if n := len(s.left.list); n != mostKept {
		t.Errorf("%d are kept", n)
	}
	m := s.joins(Member{Lease: "x", Payer: "red"})
	if want := -time.Duration(3*mostKept-1) * time.Millisecond; m.deficit != want || len(s.left.list) != mostKept-1 {
		t.Errorf("it owes %v, want %v; %d are kept", -m.deficit, -want, len(s.left.list))
	}
	if m := s.joins(Member{Lease: "y", Payer: "blue"}); m.deficit != -time.Second {
		t.Errorf("another payer owes %v", -m.deficit)
	}
}
