package account

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/usage"
)

// useOutside lets time pass in which a user has 2 GiB of a GPU outside of leases.
func (w *fixture) useOutside(user string, busy *usage.Busy, d time.Duration) {
	for range int(d / (5 * time.Second)) {
		from := time.Now()
		elapse(5 * time.Second)
		w.RecordOutside(&usage.OutsideInterval{
			OutsideKey: usage.OutsideKey{User: user, GPU: "GPU-1"},
			From:       from,
			To:         time.Now(),
			Held:       true,
			Busy:       busy,
			Memory:     &usage.Memory{Mean: 2 << 30, Peak: 2 << 30},
		})
	}
}

// What is used outside of leases is in the account after a kill as well, counts to no lease and no tenant, and is shown to its user
// and to administrators.
func TestUseOutsideOfLeasesIsAccounted(t *testing.T) {
	inBubble(t, func(w *fixture) {
		alice := names.UIDLabel(servertest.UidAlice) // The callers of servertest have no names here.
		began := time.Now()
		w.useOutside(alice, &usage.Busy{}, 10*time.Minute)
		w.useOutside("uid 9", nil, 5*time.Minute)
		if idle, known := w.IdleOutside("uid 9", "GPU-1"); known {
			t.Errorf("bob is idle for %v, which was not measured", idle)
		}
		w.useOutside(alice, &usage.Busy{}, 5*time.Minute)
		if idle, known := w.IdleOutside(alice, "GPU-1"); !known || idle < 4*time.Minute || idle > 5*time.Minute {
			t.Errorf("alice is idle for %v, known: %v", idle, known)
		}
		before := w.total()
		state := w.kill()
		w.start(state)
		for who, want := range map[string]int{"root": 2, "member": 1} {
			u, e := w.get(who, "by=user,gpu")
			if e != nil {
				t.Fatal(e)
			}
			if u.Outside == nil || len(u.Outside.Rows) != want {
				t.Fatalf("%s sees %+v", who, u.Outside)
			}
			r := u.Outside.Rows[0]
			if lost := 900_000 - r.HeldSeconds; r.User != alice || r.GPU != "GPU-1" || r.Tenant != "" || lost < 0 || lost > 60_000 ||
				r.GPUMemoryGiBSeconds != 2*r.HeldSeconds || r.BusyMeasuredSeconds != r.HeldSeconds || r.BusySeconds != 0 {
				t.Errorf("%s sees %+v", who, r)
			}
		}
		after := w.total()
		if passed := time.Since(began).Milliseconds(); int64(after.HeldSeconds) > passed || after.HeldSeconds < before.HeldSeconds {
			t.Errorf("leases had the GPU for %s of %d ms", after.HeldSeconds, passed)
		}
	})
}
