package isolation

import "github.com/gpushare/gpushare/internal/locks"

// HostCache reads a host once for each observation of the node: every lease needs it at its start, and the list of MIG
// capabilities has a line for each possible instance.
type HostCache struct {
	Root string // of the host; not changed after the first use

	mu   locks.Mutex[locks.HostFiles] // guards what follows
	at   any
	host Host
}

// At returns the host as read for an observation. Observations are compared by identity. For nil the host is read again.
func (h *HostCache) At(observation any) (Host, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == observation && observation != nil {
		return h.host, nil
	}
	host, err := ReadHost(h.Root)
	if err != nil {
		return host, err
	}
	h.at, h.host = observation, host
	return host, nil
}
