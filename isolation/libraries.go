package isolation

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Library is one of the driver's libraries, or a program of it, which must be of exactly the kernel module's version.
type Library struct {
	Path   string // on the host, below its root
	Soname string // what programs link to: "libcuda.so.1"; empty for a program, and when it is the file's own name
}

// driverFiles names what compute needs of the driver. What draws is left out.
func driverFiles() []string {
	return []string{
		"libcuda", "libcudadebugger", "libnvidia-gpucomp", "libnvidia-ml", "libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-opencl",
		"libnvidia-ptxjitcompiler", "libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow",
	}
}

// libraryDirs are where distributions and the driver's own installer put 64-bit libraries.
func libraryDirs() []string {
	return []string{
		"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current",
		"usr/lib64", "usr/lib",
	}
}

// ReadLibraries finds the driver's libraries of a version below a root. Of several places the first that has a library
// counts. What is not there is left out: a host may have the parts for computing only.
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

// soname is what the library calls itself; where that cannot be read, what all of these but the compilers have.
func soname(root, path, name string) string {
	own := name + ".so.1"
	if f, err := elf.Open(filepath.Join(root, path)); err == nil {
		if names, err := f.DynString(elf.DT_SONAME); err == nil && len(names) == 1 && filepath.Base(names[0]) == names[0] {
			own = names[0]
		}
		_ = f.Close() // it was only read
	}
	if own == filepath.Base(path) {
		return ""
	}
	return own
}
