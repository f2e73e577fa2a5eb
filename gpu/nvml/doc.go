//go:build cgo

// Package nvml implements gpu.Driver on the vendor's library through go-nvml, and is its only importer.
//
// It asks the device for everything: it keeps no table of boards, profiles or placements, and no policy. It must run in
// a process of its own (gpu/worker): a call may hang for ever in the kernel, and a call of a symbol that the loaded
// library lacks ends the process at once, which is why every optional symbol is looked up at start and its feature left
// out by name. For the same reason the binary is never linked with -z now.
//
// One process loads one library: a second Open with another path would still call the first.
package nvml
