package isolation

import "sync"

// HostCache reads a host once for each observation of the node: every lease that starts asks for it, and the list of MIG
// capabilities alone has a line for each instance that could ever be.
type HostCache struct {
	Root string // of the host; not changed after the first use

	mu   sync.Mutex // guards what follows
	at   any
	host Host
}

// At gives the host as it was read for an observation, which is told apart by identity. Without one it is read anew.
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
