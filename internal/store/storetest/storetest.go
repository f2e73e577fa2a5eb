// Package storetest opens a store for a test. Only tests use it.
package storetest

import (
	"path/filepath"
	"testing"

	"github.com/gpushare/gpushare/internal/store"
)

// Open opens a store in a new directory, until the end of the test. The store creates the directory: one of the test has the mode that
// the umask of its user gives it, and a store is in none that a group may write to.
func Open(tb testing.TB) *store.Store {
	tb.Helper()
	st, _, err := store.Open(filepath.Join(tb.TempDir(), "state"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = st.Close() }) // The test may have closed it.
	return st
}
