// Package mpsdtest has the stand-in of MPS as a program, for the tests of what supervises it.
package mpsdtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpushare/gpushare/gpusim/mpsd"
)

// Builder builds the program once for all the tests that share it. The zero value works.
//
// The program is built without the race detector, also for a test that has it: each query of a control daemon is a process, and the
// detector makes the start of a process four times as long. Package mpsd has tests with the detector.
type Builder struct {
	once sync.Once
	dir  string
	out  []byte
	err  error
}

// Path returns the program under the name of the control program of MPS.
func (b *Builder) Path(tb testing.TB) string {
	tb.Helper()
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "mpsd-"); b.err != nil {
			return
		}
		if b.err = os.Chmod(b.dir, 0o755); b.err != nil { // for the programs of other users
			return
		}
		cmd := exec.CommandContext(
			tb.Context(), "go", "build", "-buildvcs=false", "-o", b.path(), "github.com/gpushare/gpushare/gpusim/mpsd/mpsdtest/standin",
		)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		b.out, b.err = cmd.CombinedOutput()
	})
	if b.err != nil {
		tb.Fatalf("cannot build the stand-in of MPS: %v\n%s", b.err, b.out)
	}
	return b.path()
}

func (b *Builder) path() string { return filepath.Join(b.dir, mpsd.ControlName) }

// Remove deletes the program. Call it after all tests.
func (b *Builder) Remove() error {
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}
