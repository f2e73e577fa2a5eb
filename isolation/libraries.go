package isolation

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Library is a library or a program of the driver. Its version must equal that of the kernel module.
type Library struct {
	Path   string // on the host, relative to its root
	Soname string // what programs link to: "libcuda.so.1"; empty for a program, and when it is the file's own name
}

// driverFiles are the libraries of the driver for computing, without those for graphics.
func driverFiles() []string {
	return []string{
		"libcuda", "libcudadebugger", "libnvidia-gpucomp", "libnvidia-ml", "libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-opencl",
		"libnvidia-ptxjitcompiler", "libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow",
	}
}

// libraryDirs are the directories of 64-bit libraries in distributions and in the driver's own installer.
func libraryDirs() []string {
	return []string{
		"usr/lib/x86_64-linux-gnu",
		"usr/lib/aarch64-linux-gnu",
		"usr/lib/x86_64-linux-gnu/nvidia/current",
		"usr/lib/aarch64-linux-gnu/nvidia/current",
		"usr/lib64",
		"usr/lib",
	}
}

// ReadLibraries finds the driver's libraries of a version below root. It uses the first directory that has a library, and
// skips missing ones: a host may have only some packages of the driver.
func ReadLibraries(root, version string) []Library {
	var out []Library
	if version == "" {
		return nil
	}
	for _, name := range driverFiles() {
		for _, dir := range libraryDirs() {
			path := filepath.Join("/", dir, name+".so."+version)
			if fi, err := os.Stat(filepath.Join(root, path)); err != nil || !fi.Mode().IsRegular() {
				continue
			}
			out = append(out, Library{Path: path, Soname: soname(root, path, name)})
			break
		}
	}
	if fi, err := os.Stat(filepath.Join(root, "usr/bin/nvidia-smi")); err == nil && fi.Mode().IsRegular() {
		out = append(out, Library{Path: "/usr/bin/nvidia-smi"})
	}
	slices.SortFunc(out, func(a, b Library) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// soname is the DT_SONAME of the library. When it cannot be read, it is name.so.1, as for all of these except the
// compilers.
func soname(root, path, name string) string {
	own := name + ".so.1"
	if f, err := elf.Open(filepath.Join(root, path)); err == nil {
		if names, err := f.DynString(elf.DT_SONAME); err == nil && len(names) == 1 && filepath.Base(names[0]) == names[0] {
			own = names[0]
		}
		_ = f.Close() // opened only for reading
	}
	if own == filepath.Base(path) {
		return ""
	}
	return own
}
