package main

import (
	"path/filepath"
	"testing"
)

// Every package is run or left out, and the list names no package that does not exist. A package behind a build tag is known by its files.
func TestEveryPackageIsRunOrLeftOut(t *testing.T) {
	t.Chdir("../..")
	all, err := packages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 60 {
		t.Fatalf("only %d packages: %v", len(all), all)
	}
	listed := 0
	for _, l := range leftOut {
		if files, err := filepath.Glob(filepath.Join(l.pkg, "*_test.go")); err != nil || len(files) == 0 {
			t.Errorf("%s has no tests: delete its line (%v)", l.pkg, err)
		}
		for i := range all {
			if all[i].name == l.pkg {
				listed++
			}
		}
		if l.why == "" || l.command() == "" {
			t.Errorf("%s: nothing says why it is left out or what runs it", l.pkg)
		}
	}
	if got := len(quickPackages(all)) + listed; got != len(all) {
		t.Errorf("%d of %d packages are run or left out", got, len(all))
	}
}
