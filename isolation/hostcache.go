package isolation

import (
	"maps"
	"path/filepath"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/locks"
)

// HostCache reads a host once for each observation of the node: every lease needs it at its start, and the list of MIG
// capabilities has a line for each possible instance.
type HostCache struct {
	Root string // of the host; not changed after the first use

	mu   locks.Mutex[locks.HostFiles] // guards what follows
	at   any
	host Host
}

// At returns the host as read for an observation, unless the kernel has other drivers by now: their majors are read each time, because
// a driver that was loaded again may have another one before the next observation. Observations are compared by identity. For nil the
// host is read again, for the observation too.
func (h *HostCache) At(observation any) (Host, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == observation && observation != nil && h.sameDriversLocked() {
		return h.host, nil
	}
	host, err := ReadHost(h.Root)
	if err != nil {
		return host, err
	}
	if observation != nil {
		h.at = observation
	}
	h.host = host
	return host, nil
}

// sameDriversLocked reports whether the kernel has the drivers that the host was read with.
func (h *HostCache) sameDriversLocked() bool {
	text, err := boundedread.Trusted(filepath.Join(h.Root, devicesFile), boundedread.Table)
	return err == nil && maps.Equal(parseMajors(string(text)), h.host.Majors)
}
