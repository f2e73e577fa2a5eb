package client

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

const (
	// crowded is for how long a connection is tried while the daemon's backlog is full: somebody floods it.
	crowded = 10 * time.Second
	// crowdedPause is the time between two tries.
	crowdedPause = 2 * time.Millisecond
)

// Dial connects to the daemon's socket. While more connections come than the daemon takes the kernel refuses with EAGAIN
// at once, and whoever tries again gets in: the daemon refuses those of one user past its cap.
func Dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	end := time.Now().Add(crowded)
	for {
		c, err := d.DialContext(ctx, "unix", socket)
		if err == nil || !errors.Is(err, syscall.EAGAIN) || time.Now().After(end) {
			return c, err
		}
		pause := time.NewTimer(crowdedPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, err
		}
	}
}
