//go:build cgo

// Package nvml implements gpu.Driver on the vendor's library through go-nvml, and is its only importer.
//
// It reads everything from the device: it has no table of boards, profiles or placements, and no policy. It must run in a
// separate process (gpu/worker), because a call may hang in the kernel without end, and a call of a symbol that the
// loaded library lacks ends the process. Therefore every optional symbol is looked up at start, and features without
// their symbols are disabled. For the same reason the binary must not be linked with -z now.
//
// One process loads one library: a second Open with another path still calls the first.
package nvml
