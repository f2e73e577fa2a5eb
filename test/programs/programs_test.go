package programs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// What was written can be executed at once, although other programs are started all the time.
func TestWrittenProgramsRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exec.CommandContext(t.Context(), "true").Run(); err != nil {
					t.Errorf("another program: %v", err)
					return
				}
			}
		})
	}
	defer others.Wait()
	defer close(stop)
	for i := range 300 {
		file := filepath.Join(dir, strconv.Itoa(i))
		if err := programs.Write(file, "#!/bin/sh\nexit 0\n"); err != nil {
			t.Fatal(err)
		}
		if err := exec.CommandContext(t.Context(), file).Run(); err != nil {
			t.Fatalf("program %d: %v", i, err)
		}
	}
}

// executable is a call that writes a program in another way.
var executable = regexp.MustCompile(`os\.WriteFile\(.*0o?7[0-7]{2}\)`)

// Every test writes its programs with Write: those that do it by themselves fail once in a hundred runs.
func TestEveryTestWritesItsProgramsHere(t *testing.T) {
	t.Parallel()
	const root = "../.."
	found := 0
	err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || file == filepath.Join(root, "build") || file == filepath.Join(root, "bin")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || file == filepath.Join(root, "test/programs/programs.go"):
			return nil
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		found += strings.Count(string(b), "programs.Write(")
		for _, call := range executable.FindAllString(string(b), -1) {
			t.Errorf("%s: %s: use programs.Write", strings.TrimPrefix(file, root+"/"), call)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 10 {
		t.Errorf("%d programs are written by tests: the search is wrong", found)
	}
}
