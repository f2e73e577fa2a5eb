//go:build engines

package engines

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// only returns a directory with copies of some files of another one.
func only(t *testing.T, dir string, names ...string) string {
	t.Helper()
	some := t.TempDir()
	for _, n := range names {
		content := readFile(t, filepath.Join(dir, n))
		if err := programs.Write(filepath.Join(some, n), content); err != nil {
			t.Fatal(err)
		}
	}
	return some
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
