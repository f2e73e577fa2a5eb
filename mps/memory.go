package mps

import "fmt"

const mebibyte = 1 << 20

// FormatMemory writes a memory limit so that the driver's parser reads it as it was meant: whole MiB with an M. That
// parser takes everything but G for M and reads no fractions, so 1.5G is one MiB to it, and 1T too, and a number of bytes
// is no limit at all. total is the device's memory in bytes, 0 when it is not known.
func FormatMemory(bytes, total uint64) (string, error) {
	switch {
	case bytes < mebibyte:
		return "", fmt.Errorf("a memory limit of %d bytes is too small for MPS: the least is 1MiB", bytes)
	case bytes%mebibyte != 0:
		return "", fmt.Errorf("a memory limit of %d bytes does not suit MPS: it counts whole MiB", bytes)
	case total > 0 && bytes > total:
		return "", fmt.Errorf("a memory limit of %d MiB is more than the GPU's %d MiB", bytes/mebibyte, total/mebibyte)
	}
	return fmt.Sprintf("%dM", bytes/mebibyte), nil
}

// readBack is how the control daemon prints a limit that is in force: whole G with the rest cut off, or whole M. So a limit
// of 1500M reads back as 1G: this says what to expect, not what holds.
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
