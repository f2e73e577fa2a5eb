package stop

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// AwaitEnded returns when the lease has ended, also when another goroutine removes its isolation.
func TestAwaitEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Stopper{LeaseChanges: &LeaseChanges{}}
		slow := &slowIsolation{begun: make(chan struct{}), end: make(chan struct{})}
		d.Table = leasetest.TableOf(
			t, lease.Config{Isolation: slow, Changed: func(lease.Lease) { d.LeaseChanges.Report() }}, "red", "part", 1001,
		)
		id := d.Table.Live()[0].ID
		go func() { _ = d.Table.Ended(t.Context(), id, "its last process ended") }() // The result is checked below.
		<-slow.begun
		if err := d.Table.Ended(t.Context(), id, "stopped"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- d.AwaitEnded(t.Context(), id) }()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("its isolation is still active, and it is reported as ended: %v", err)
		default:
		}
		close(slow.end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, ok := d.Table.Get(id); ok {
			t.Error("it has not ended")
		}
		if err := d.AwaitEnded(t.Context(), "never-there"); err != nil {
			t.Error(err)
		}
	})
}

// slowIsolation is removed only when the test allows it.
type slowIsolation struct {
	leasetest.NoIsolation
	begun, end chan struct{}
}

func (w *slowIsolation) RemoveIsolation(context.Context, lease.Lease) error {
	close(w.begun)
	<-w.end
	return nil
}
