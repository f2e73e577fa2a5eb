package burntest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Builder builds gpusim-burn once for all the tests that share it. The zero value works.
type Builder struct {
	once sync.Once
	dir  string
	path string
	out  []byte
	err  error
}

// Path returns the built program. It skips the test when there is no C compiler.
func (b *Builder) Path(tb testing.TB) string {
	tb.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		tb.Skip("gcc is missing: cannot build gpusim-burn")
	}
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "gpusim-burn-"); b.err != nil {
			return
		}
		b.path = filepath.Join(b.dir, "gpusim-burn")
		cmd := exec.CommandContext(tb.Context(), gcc, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror",
			"-o", b.path, filepath.Join(moduleRoot(tb), "gpusim/burn/burn.c"))
		if b.out, b.err = cmd.CombinedOutput(); b.err == nil {
			b.err = os.Chmod(b.path, 0o755) // Other users execute it too.
		}
	})
	if b.err != nil {
		tb.Fatalf("cannot build gpusim-burn: %v\n%s", b.err, b.out)
	}
	return b.path
}

// Remove deletes the program. Call it after all tests.
func (b *Builder) Remove() error {
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

func moduleRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			tb.Fatal("cannot find go.mod in a parent directory")
		}
		dir = filepath.Dir(dir)
	}
}
