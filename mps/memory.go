package mps

import "fmt"

const mebibyte = 1 << 20

// FormatMemory formats a memory limit so that the driver's parser reads the right value: whole MiB with an M. That parser
// reads every unit except G as M and does not read fractions: 1.5G and 1T are 1 MiB for it, and a number of bytes is no
// limit. total is the device's memory in bytes, 0 when it is not known.
func FormatMemory(bytes, total uint64) (string, error) {
	switch {
	case bytes < mebibyte:
		return "", fmt.Errorf("a memory limit of %d bytes is too small for MPS: the minimum is 1 MiB", bytes)
	case bytes%mebibyte != 0:
		return "", fmt.Errorf("a memory limit of %d bytes is not possible with MPS: it must be whole MiB", bytes)
	case total > 0 && bytes > total:
		return "", fmt.Errorf("a memory limit of %d MiB is more than the GPU's %d MiB", bytes/mebibyte, total/mebibyte)
	}
	return fmt.Sprintf("%dM", bytes/mebibyte), nil
}

// readBack is how the control daemon prints an active limit: whole G, rounded down, or whole M. A limit of 1500M reads back as
// 1G, so this is the expected output, not the exact limit.
func readBack(bytes uint64) string {
	switch {
	case bytes == 0:
		return ""
	case bytes >= 1<<30:
		return fmt.Sprintf("%dG", bytes>>30)
	default:
		return fmt.Sprintf("%dM", bytes>>20)
	}
}
