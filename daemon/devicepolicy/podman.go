package devicepolicy

import (
	"context"

	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// PodmanOptions returns the options with which rootless podman runs a container in a lease, started by a process of it.
func (pol *Policy) PodmanOptions(ctx context.Context, l *lease.Lease) ([]string, error) {
	node := pol.Observer.Last()
	hw, err := pol.hardware(node, nil)
	if err != nil {
		return nil, err
	}
	c, err := pol.container(ctx, &hw, l)
	if err != nil {
		return nil, err
	}
	pol.CDI.Mu.Lock()
	pol.CDI.readLibrariesLocked(pol.HostRoot, node)
	c.Libraries = pol.CDI.libraries
	pol.CDI.Mu.Unlock()
	return isolation.PodmanOptions(c)
}
