package daemon

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/internal/loop"
)

// releaseInterval is the time between two returns of memory. One takes some ms of CPU, and what is used again some hundred page faults.
const releaseInterval = time.Minute

// returnMemory returns to the kernel what the start used, and after that what a burst of requests or changes has used, until ctx ends.
func (d *Daemon) returnMemory(ctx context.Context) {
	for {
		if err := d.release(); err != nil {
			d.Log.Debug("cannot return memory to the kernel", "error", err)
		}
		if !loop.Every(ctx, releaseInterval) {
			return
		}
	}
}
