//go:build cgo

package nvml

import "unsafe"

// Missing returns which of the functions that this package calls a library lacks, in the order of the table; the first of some
// names of one function is missing if a later one is called instead. The error names the first function without which the
// driver cannot be opened.
func Missing(exports func(name string) bool) ([]string, error) {
	var there byte
	s, err := findSymbols(func(name string) unsafe.Pointer {
		if exports(name) {
			return unsafe.Pointer(&there)
		}
		return nil
	})
	return s.missing, err
}
