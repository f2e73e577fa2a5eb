// Package golden compares text that the code produces with a committed file. With -update the test of a package writes its files
// again. A difference names the command that does so. It knows nothing of what is in the files.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files of this package again: then read the difference")

// File compares a file with the text that it must have, or writes it with -update.
func File(t testing.TB, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: '%s' writes it", err, Command())
	}
	if d := cmp.Diff(string(b), want); d != "" {
		t.Errorf("%s differs from the code. If the code is right, '%s' writes it (-%s +code):\n%s", file, Command(), filepath.Base(file), d)
	}
}

// Command is the command that writes the golden files of the package that is tested.
func Command() string { return "go test " + thisPackage() + " -update" }

// thisPackage is the directory of the tested package, as a person writes it in the root of the module.
func thisPackage() string {
	dir, err := os.Getwd() // A test runs in the directory of its package.
	if err != nil {
		return "."
	}
	for root := dir; root != filepath.Dir(root); root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			rel, err := filepath.Rel(root, dir)
			if err != nil || rel == "." {
				return "."
			}
			return "./" + filepath.ToSlash(rel)
		}
	}
	return "."
}
