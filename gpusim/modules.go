package gpusim

import (
	"fmt"
	"slices"
)

// The modules of the kernel that use that of the driver. Their device nodes appear when they are loaded.
const (
	ModuleUVM     = "nvidia-uvm"     // CUDA needs it: a host loads it at boot, or with the first CUDA program
	ModuleModeset = "nvidia-modeset" // displays
	ModuleDRM     = "nvidia-drm"     // the nodes in /dev/dri
)

// Modules are the names of all.
func Modules() []string { return []string{ModuleUVM, ModuleModeset, ModuleDRM} }

// SetModule loads or unloads a module.
func (n *Node) SetModule(name string, load bool) error {
	n.mu.Lock()
	if !slices.Contains(Modules(), name) || n.cfg.State == DriverAbsent {
		n.mu.Unlock()
		return fmt.Errorf("cannot load or unload the module %s: it is not known, or the driver is not loaded", name)
	}
	n.modules[name] = load
	n.mu.Unlock()
	n.changed()
	return nil
}

// loadModulesLocked loads those that a load of the driver loads with it.
func (n *Node) loadModulesLocked() {
	n.modules = map[string]bool{}
	for _, m := range Modules() {
		n.modules[m] = !slices.Contains(n.cfg.LateModules, m)
	}
}

func (n *Node) modulesLocked() []string {
	return slices.DeleteFunc(Modules(), func(m string) bool { return !n.modules[m] })
}
