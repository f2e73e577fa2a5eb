package state

import (
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// Epoch is the hardware epoch as the store keeps it.
func Epoch(n *observe.Node) store.Epoch {
	return store.Epoch{Boot: n.Epoch.Boot, Driver: n.Epoch.Driver}
}

// EpochEnded tells whether a boot or a load of the driver came since: no instance outlives either.
func EpochEnded(e store.Epoch, n *observe.Node) bool {
	return e.Boot != n.Epoch.Boot || e.Driver != n.Epoch.Driver
}
