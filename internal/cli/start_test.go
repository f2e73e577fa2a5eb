package cli_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// startBytes is what a package of gpushare may allocate before main: a lease waits for the start of the command line, and a table or a
// pattern that is made there is made by every command.
const startBytes = 6 << 10

// The packages of the command line make their tables and patterns when they are used, and not at its start.
func TestPackagesOfTheCommandLineDoLittleAtItsStart(t *testing.T) {
	t.Parallel()
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	self.Env = append(os.Environ(), "GODEBUG=inittrace=1") // "init PACKAGE @0.9 ms, 0.01 ms clock, 4240 bytes, 10 allocs"
	out, err := self.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[0] != "init" || !strings.HasPrefix(f[1], "github.com/gpushare/gpushare/") || strings.Contains(f[1], "_test") ||
			strings.Contains(f[1], "/gpushare/test/") {
			continue
		}
		seen++
		if n, err := strconv.Atoi(f[7]); err != nil || n > startBytes {
			t.Errorf("%s allocates %s bytes before main, and may allocate %d: %v", f[1], f[7], startBytes, err)
		}
	}
	if seen < 3 {
		t.Errorf("only %d packages were seen in:\n%s", seen, out)
	}
}
