package converge

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// eventDriver registers for events when it may.
type eventDriver struct {
	gpu.Driver // not called
	may        chan error
}

func (d eventDriver) Events(ctx context.Context, f func(gpu.Event)) error {
	select {
	case err := <-d.may:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	f(gpu.Event{Kind: gpu.EventWatching})
	<-ctx.Done()
	return ctx.Err()
}

// The daemon waits until the events of the driver are followed, or there are none, and not indefinitely.
func TestTheStartWaitsForEvents(t *testing.T) {
	for name, err := range map[string]error{"they are followed": nil, "there are none": gpu.ErrNotSupported} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, sharedSpec)
			synctest.Test(t, func(t *testing.T) {
				may := make(chan error, 1)
				w.Driver = eventDriver{may: may}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); w.eventLoop(ctx) }()
				began := time.Now()
				if !w.AwaitEvents(ctx, 2*time.Second) || time.Since(began) != 2*time.Second {
					t.Errorf("it waited for %s for events that are not followed yet", time.Since(began))
				}
				time.AfterFunc(time.Second, func() { may <- err })
				began = time.Now()
				if w.AwaitEvents(ctx, 2*time.Second) || time.Since(began) != time.Second {
					t.Errorf("it waited for %s", time.Since(began))
				}
				if w.AwaitEvents(ctx, 2*time.Second) || time.Since(began) != time.Second {
					t.Error("it waited again")
				}
				stop()
				<-ended
			})
		})
	}
}
