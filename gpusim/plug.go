package gpusim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// maxGPUs is for how many GPUs the driver has capability minors.
const maxGPUs = 32

// RemoveGPU is a GPU that falls off the bus: it is lost at once, and not there at the next load of the driver.
func (n *Node) RemoveGPU(id string) error {
	n.mu.Lock()
	g := n.findLocked(id)
	if g == nil {
		n.mu.Unlock()
		return fmt.Errorf("cannot remove GPU %s: not found", id)
	}
	n.next = slices.DeleteFunc(n.boardsLocked(), func(d *device) bool { return d == g })
	n.mu.Unlock()
	n.Lose(g.index)
	return nil
}

// AddGPU plugs a GPU. It is there from the next load of the driver on.
func (n *Node) AddGPU(cfg GPUConfig) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.boardsLocked()
	switch {
	case cfg.Model == nil:
		return fmt.Errorf("cannot add GPU: it has no model")
	case len(all) == maxGPUs:
		return fmt.Errorf("cannot add GPU: the node has %d, and the driver has capability minors for no more", len(all))
	case slices.ContainsFunc(all, func(d *device) bool { return samePCI(d.cfg.PCI, cfg.PCI) }):
		return fmt.Errorf("cannot add GPU: there is one at %s", cfg.PCI)
	}
	if err := cfg.Model.Validate(); err != nil {
		return fmt.Errorf("cannot add GPU: %w", err)
	}
	n.plugged++
	n.next = append(all, newDevice(n, maxGPUs+n.plugged, cfg)) // Its UUID is that of no GPU of the node file.
	return nil
}

// ReplaceGPU puts another board of the same model in the place of a GPU: it is there from the next load of the driver on, with
// another UUID.
func (n *Node) ReplaceGPU(id string) (gpu.UUID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.findLocked(id)
	if g == nil {
		return "", fmt.Errorf("cannot replace GPU %s: not found", id)
	}
	cfg := g.cfg
	cfg.UUID, cfg.MIG, cfg.Layout, cfg.ComputeMode = "", false, nil, ""
	n.plugged++
	other := newDevice(n, maxGPUs+n.plugged, cfg)
	all := n.boardsLocked()
	all[slices.Index(all, g)] = other
	n.next = all
	return other.uuid, nil
}

// SwapGPUs exchanges the places of two boards: from the next load of the driver on each has the address and the index of the other.
func (n *Node) SwapGPUs(a, b string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	first, second := n.findLocked(a), n.findLocked(b)
	if first == nil || second == nil || first == second {
		return fmt.Errorf("cannot swap GPUs %s and %s: they are not two GPUs of the node", a, b)
	}
	all := n.boardsLocked()
	i, j := slices.Index(all, first), slices.Index(all, second)
	if i < 0 || j < 0 {
		return fmt.Errorf("cannot swap GPUs %s and %s: one of them was removed", a, b)
	}
	all[i], all[j] = second, first
	n.next, n.swapped = all, append(n.swapped, [2]*device{first, second})
	return nil
}

// boardsLocked are the boards that the next load of the driver finds. The caller may change the list.
func (n *Node) boardsLocked() []*device {
	if n.next != nil {
		return slices.Clone(n.next)
	}
	return slices.Clone(n.devices)
}

// probeLocked finds the boards that are plugged: a load of the driver numbers them in the order of their addresses.
func (n *Node) probeLocked() {
	if n.next == nil {
		return
	}
	for _, s := range n.swapped {
		s[0].cfg.PCI, s[1].cfg.PCI = s[1].cfg.PCI, s[0].cfg.PCI
	}
	for _, g := range n.devices {
		if !slices.Contains(n.next, g) {
			g.clearLocked()
			g.engine.Close()
		}
	}
	slices.SortStableFunc(n.next, func(a, b *device) int { return cmp.Compare(a.cfg.PCI, b.cfg.PCI) })
	for i, g := range n.next {
		g.index, g.minor = i, i
	}
	n.devices, n.next, n.swapped = n.next, nil, nil
}
