package control

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// handshakeTimeout is how long a control daemon that serves others may take to greet. A healthy one needs a millisecond.
const handshakeTimeout = 250 * time.Millisecond

// Handshakes returns the connections, however young, from which the control daemon of a device waits to read while it greets no
// other; none when it greets, and when none runs.
func (s *Supervisor) Handshakes(ctx context.Context, id mps.Device) ([]Peer, error) {
	st := s.gpuState(id).last.Load()
	if st == nil || st.PID == 0 {
		return nil, nil
	}
	l := s.layout(id)
	if err := greetSocket(ctx, filepath.Join(l.pipe(), "control"), handshakeTimeout, nil); !errors.Is(err, ErrUnresponsive) {
		return nil, nil //nolint:nilerr // Without a daemon there is no handshake.
	}
	p := &s.gpuState(id).peers
	p.mu.Lock()
	defer p.mu.Unlock()
	sockets, err := procfs.Sockets(st.PID)
	if err != nil {
		return nil, err
	}
	p.update(st.PID, sockets, s.Now())
	awaited, err := procfs.AwaitedSockets(st.PID)
	if err != nil {
		return nil, err
	}
	var inodes []uint64
	for ino, fd := range sockets {
		if slices.Contains(awaited, fd) {
			inodes = append(inodes, ino)
		}
	}
	return p.identify(ctx, l, st.PID, sockets, inodes)
}

// AwaitGreeting waits until the control daemon of a device greets, at most for limit, and reports whether it did.
func (s *Supervisor) AwaitGreeting(ctx context.Context, id mps.Device, limit time.Duration) bool {
	return greetSocket(ctx, filepath.Join(s.layout(id).pipe(), "control"), limit, nil) == nil
}
