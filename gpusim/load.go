package gpusim

import (
	"cmp"
	"fmt"
)

// UnloadDriver unloads the kernel module. It fails with the pids while processes use the driver, unless forced (which is not
// possible on a real node).
func (n *Node) UnloadDriver(force bool) error {
	n.mu.Lock()
	if pids := n.inUseByLocked(nil, nil); len(pids) > 0 && !force {
		n.mu.Unlock()
		return fmt.Errorf("cannot unload driver: module nvidia is in use by pids %s", joinPIDs(pids))
	}
	n.dropLocked()
	for _, g := range n.devices {
		g.clearLocked()
	}
	n.cfg.State = DriverAbsent
	n.mu.Unlock()
	n.changed()
	return nil
}

// LoadDriver loads the kernel module that is installed after UnloadDriver. GPUs that were plugged meanwhile are there then.
func (n *Node) LoadDriver() error {
	n.mu.Lock()
	if n.cfg.State != DriverAbsent {
		n.mu.Unlock()
		return fmt.Errorf("cannot load driver: it is loaded")
	}
	n.loadLocked()
	version := n.cfg.DriverVersion
	n.mu.Unlock()
	n.kernel(6, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  "+version)
	n.changed()
	return nil
}

// InstallDriver installs a version: the library is of it at once, and the kernel module when it is loaded. Programs that have
// initialised the old library go on with it. names are those of profiles that this version names differently than the board's data.
func (n *Node) InstallDriver(version string, names map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.installed, n.nextNames = version, names
}

// nameLocked is the name of a profile as the loaded driver has it.
func (n *Node) nameLocked(p *Profile) string { return cmp.Or(n.profileNames[p.Name], p.Name) }

// mismatchLocked reports whether the library and the loaded module are of different versions.
func (n *Node) mismatchLocked() bool {
	return n.cfg.State == DriverMismatch || n.installed != "" && n.installed != n.cfg.DriverVersion
}
