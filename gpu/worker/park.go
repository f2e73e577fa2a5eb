package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// endedLocked is why no worker may run; nil if one may.
func (c *Client) endedLocked() error {
	switch {
	case c.closed:
		return ErrClosed
	case c.parked:
		return gpu.ErrParked
	}
	return nil
}

// Park ends the worker, so that the kernel's modules of the driver can be unloaded, and starts none until Unpark. Every
// operation fails at once with gpu.ErrParked; running ones fail with it too, so the caller runs no change. It returns when
// the worker has ended. After an error the client is parked, and a process of it may still be inside the driver.
func (c *Client) Park(ctx context.Context) error {
	c.mu.Lock()
	c.parked = true
	starting := c.starting
	live := slices.Collect(maps.Keys(c.live))
	for _, s := range live {
		c.dropLocked(s, gpu.ErrParked)
	}
	c.mu.Unlock()
	for _, s := range live {
		s.conn.Close() // the worker exits then
	}
	ctx, cancel := context.WithTimeout(ctx, closeGrace+c.o.Deadlines.Start)
	defer cancel()
	if starting != nil {
		if !wait(ctx, starting.done) {
			return fmt.Errorf("cannot end the NVML worker: one is being started: %w", ctx.Err())
		}
		c.mu.Lock()
		for s := range c.live {
			if !slices.Contains(live, s) {
				live = append(live, s)
			}
		}
		c.mu.Unlock()
	}
	for _, s := range live {
		if err := c.awaitEnd(ctx, s.proc); err != nil {
			return err
		}
	}
	return nil
}

// awaitEnd waits until a worker has ended, and kills it when that takes too long.
func (c *Client) awaitEnd(ctx context.Context, p Process) error {
	grace, cancel := context.WithTimeout(ctx, closeGrace+time.Second)
	defer cancel()
	if wait(grace, p.Done()) {
		return nil
	}
	c.kill(p)
	if !wait(ctx, p.Done()) {
		return fmt.Errorf("cannot end the NVML worker: pid %d is still inside the driver", p.PID())
	}
	return nil
}

// Unpark ends Park: the next operation starts a worker. The driver may be another one, so what was known of the old one is
// forgotten: every GPU is tried again.
func (c *Client) Unpark() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parked = false
	c.hungStarts, c.failedStarts, c.startError, c.retryAt = 0, 0, nil, time.Time{}
	clear(c.unresponsive)
	clear(c.crashes)
}
