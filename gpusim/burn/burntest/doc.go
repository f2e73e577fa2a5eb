// Package burntest helps tests that need GPU programs: it builds gpusim-burn, and serves the contexts of a virtual node that
// is no more than an engine and an amount of memory.
//
// It is for tests only, and it is not the virtual node: no MIG, no rules, no library.
package burntest
