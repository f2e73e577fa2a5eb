package hostroot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpusim"
)

// file is one file of /proc or /sys.
type file struct {
	text string
	mode os.FileMode
}

// device is one node below /dev.
type device struct {
	name         string
	major, minor uint32
	mode         os.FileMode
}

// procFiles returns every file of /proc and /sys that depends on the node, by path in the root.
func procFiles(v gpusim.View) map[string]file {
	out := map[string]file{
		"proc/devices": {devices(v), 0o444},
		"proc/driver/nvidia/version": {fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (gpusim)\n"+
			"GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n", v.DriverVersion), 0o444},
		"proc/driver/nvidia/params": {
			"ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nRegistryDwords: \"\"\n",
			0o444,
		},
		"proc/driver/nvidia/capabilities/mig/config":  {capability(gpusim.CapConfig, 0o400), 0o400},
		"proc/driver/nvidia/capabilities/mig/monitor": {capability(gpusim.CapMonitor, 0o444), 0o444},
		"proc/driver/nvidia-caps/mig-minors":          {migMinors(), 0o444},
		"sys/module/nvidia/version":                   {v.DriverVersion + "\n", 0o444},
		"sys/module/nvidia/initstate":                 {"live\n", 0o444},
	}
	for i, pci := range v.Switches {
		out["proc/driver/nvidia-nvswitch/devices/"+pci+"/information"] = file{fmt.Sprintf("Device Instance: \t %d\n", i), 0o444}
	}
	if v.FabricManager {
		// The virtual node is the fabric manager too. The kernel keeps 15 characters of a name.
		out[fmt.Sprintf("proc/%d/comm", os.Getpid())] = file{"nv-fabricmanage\n", 0o444}
	}
	for _, g := range v.GPUs {
		pci := lower(g.Identity.PCI)
		// The directories of a GPU that fell off the bus exist until the next boot.
		out["proc/driver/nvidia/gpus/"+pci+"/information"] = file{fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\n"+
			"Video BIOS: \t ??.??.??.??.??\nBus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n"+
			"Bus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
			g.Identity.Model, 100+g.Identity.Index, g.Identity.UUID, pci, g.Identity.Minor, v.DriverVersion), 0o444}
		sys := "sys/bus/pci/devices/" + pci
		id := g.Model.PCIDevice
		out[sys+"/numa_node"] = file{fmt.Sprintf("%d\n", g.Identity.NUMANode), 0o444}
		out[sys+"/vendor"] = file{fmt.Sprintf("0x%04x\n", id&0xffff), 0o444}
		out[sys+"/device"] = file{fmt.Sprintf("0x%04x\n", id>>16), 0o444}
		out[sys+"/class"] = file{"0x030200\n", 0o444}
		for _, n := range graphicsNodes(v, g.Identity.Minor) {
			out[sys+"/drm/"+filepath.Base(n.name)+"/dev"] = file{fmt.Sprintf("%d:%d\n", n.major, n.minor), 0o444}
		}
		caps := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/", g.Identity.Minor)
		for _, gi := range g.Instances {
			at := fmt.Sprintf("%sgi%d/", caps, gi.ID)
			out[at+"access"] = file{capability(gpusim.CapGI(g.Identity.Minor, gi.ID), 0o444), 0o444}
			for _, ci := range gi.Compute {
				out[fmt.Sprintf("%sci%d/access", at, ci.ID)] = file{capability(gpusim.CapCI(g.Identity.Minor, gi.ID, ci.ID), 0o444), 0o444}
			}
		}
	}
	return out
}

// devices is /proc/devices, with the modules that are loaded.
func devices(v gpusim.View) string {
	var b strings.Builder
	b.WriteString("Character devices:\n  1 mem\n  5 /dev/tty\n")
	line := func(major int, name, module string) {
		if module == "" || slices.Contains(v.Modules, module) {
			fmt.Fprintf(&b, "%3d %s\n", major, name)
		}
	}
	line(MajorGPU, "nvidia", "")
	line(MajorGPU, "nvidia-modeset", gpusim.ModuleModeset)
	line(MajorGPU, "nvidiactl", "")
	line(MajorCaps, "nvidia-caps", "")
	line(MajorUVM, "nvidia-uvm", gpusim.ModuleUVM)
	b.WriteString("\nBlock devices:\n259 blkext\n")
	return b.String()
}

func capability(minor int, mode os.FileMode) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode)
}

// migMinors lists every possible capability minor.
func migMinors() string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %d\nmonitor %d\n", gpusim.CapConfig, gpusim.CapMonitor)
	for g := range 32 {
		for gi := range uint32(15) {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", g, gi, gpusim.CapGI(g, gi))
			for ci := range uint32(8) {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", g, gi, ci, gpusim.CapCI(g, gi, ci))
			}
		}
	}
	return b.String()
}

// graphicsNodes are the nodes of nvidia-drm for a GPU. Their order is not that of the GPUs, as on hosts whose driver found
// them in another order.
func graphicsNodes(v gpusim.View, minor int) []device {
	if !slices.Contains(v.Modules, gpusim.ModuleDRM) {
		return nil
	}
	n := uint32(len(v.GPUs) - minor)
	return []device{{fmt.Sprintf("dri/card%d", n), majorDRM, n, 0o666}, {fmt.Sprintf("dri/renderD%d", 128+n), majorDRM, 128 + n, 0o666}}
}

// deviceNodes returns every node below /dev.
func deviceNodes(v gpusim.View) []device {
	out := []device{
		{"nvidiactl", MajorGPU, minorCtl, 0o666},
	}
	if !v.NodesByHelper {
		out = append(
			out, device{"nvidia-caps/nvidia-cap1", MajorCaps, gpusim.CapConfig, 0o400},
			device{"nvidia-caps/nvidia-cap2", MajorCaps, gpusim.CapMonitor, 0o444},
		)
	}
	if !v.NodesByHelper && slices.Contains(v.Modules, gpusim.ModuleModeset) {
		out = append(out, device{"nvidia-modeset", MajorGPU, minorModeset, 0o666})
	}
	if !v.NodesByHelper && slices.Contains(v.Modules, gpusim.ModuleUVM) {
		out = append(out, device{"nvidia-uvm", MajorUVM, 0, 0o666}, device{"nvidia-uvm-tools", MajorUVM, 1, 0o666})
	}
	for _, g := range v.GPUs {
		out = append(out, graphicsNodes(v, g.Identity.Minor)...)
		out = append(out, device{fmt.Sprintf("nvidia%d", g.Identity.Minor), MajorGPU, uint32(g.Identity.Minor), 0o666})
		for _, gi := range g.Instances {
			if v.NodesByHelper {
				break
			}
			minors := []int{gpusim.CapGI(g.Identity.Minor, gi.ID)}
			for _, ci := range gi.Compute {
				minors = append(minors, gpusim.CapCI(g.Identity.Minor, gi.ID, ci.ID))
			}
			for _, m := range minors {
				out = append(out, device{fmt.Sprintf("nvidia-caps/nvidia-cap%d", m), MajorCaps, uint32(m), 0o444})
			}
		}
	}
	return out
}
