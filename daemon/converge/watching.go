package converge

import (
	"context"
	"sync"
	"time"
)

// watching is whether the events of the driver are followed. The zero value works.
type watching struct {
	create, ended sync.Once
	c             chan struct{}
}

func (w *watching) done() chan struct{} {
	w.create.Do(func() { w.c = make(chan struct{}) })
	return w.c
}

// begun records that they are followed, or that there are none.
func (w *watching) begun() {
	done := w.done()
	w.ended.Do(func() { close(done) })
}

// AwaitEvents waits until the events of the driver are followed, it is known that there are none, ctx ends or d has passed. It reports
// whether it waited for too long.
func (cv *Converger) AwaitEvents(ctx context.Context, d time.Duration) (late bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-cv.watching.done():
	case <-ctx.Done():
	case <-t.C:
		return true
	}
	return false
}
