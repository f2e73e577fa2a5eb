// Package burntest helps tests that need GPU programs: it builds gpusim-burn, and serves CUDA contexts with an engine and
// an amount of memory.
//
// It is for tests only. It is not the virtual node: it has no MIG, no rules and no library.
package burntest
