package state

import (
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// Epoch is the hardware epoch in the form of the store.
func Epoch(n *observe.Node) store.Epoch {
	return store.Epoch{Boot: n.Epoch.Boot, Driver: n.Epoch.Driver}
}

// EpochEnded reports whether the host was booted or the driver loaded since: both remove all instances.
func EpochEnded(e store.Epoch, n *observe.Node) bool {
	return e.Boot != n.Epoch.Boot || e.Driver != n.Epoch.Driver
}
