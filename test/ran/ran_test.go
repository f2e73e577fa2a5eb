package ran

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// The output of a test run and its exit code decide the result of ran.sh.
func TestZeroTestsAreAFailure(t *testing.T) {
	const one, part, skipped = "--- PASS: TestKilledAgain (0.00s)", "    --- PASS: TestKilledAgain/again (0.00s)", "--- SKIP: TestReset (0.00s)"
	for _, c := range []struct {
		name, selector string
		prints         []string
		code           string
		want           int
		says           string
	}{
		{name: "all ran", selector: "TestKilled", prints: []string{one}, code: "0"},
		{name: "no selector", prints: []string{one}, code: "0"},
		{name: "both ran", selector: "TestKilled|TestReset", prints: []string{one, "--- PASS: TestReset (0.00s)"}, code: "0"},
		{name: "one of two does not exist", selector: "TestKilled|TestReset", prints: []string{one}, code: "0", want: 1, says: "begins with TestReset"},
		{name: "one of two was skipped", selector: "TestKilled|TestReset", prints: []string{one, skipped}, code: "0", want: 1, says: "begins with TestReset"},
		{name: "none exists", selector: "TestRemoved", prints: []string{"testing: warning: no tests to run", "PASS"}, code: "0", want: 1, says: "no test ran"},
		{name: "nothing at all", prints: []string{"?   	a/package	[no test files]"}, code: "0", want: 1, says: "no test ran"},
		{name: "only a part", prints: []string{part}, code: "0", want: 1, says: "no test ran"},
		{name: "a failure stays one", selector: "TestKilled", prints: []string{one, "FAIL"}, code: "3", want: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			runner := filepath.Join(dir, "go")
			text := "#!/bin/sh\ncat <<'END'\n" + strings.Join(c.prints, "\n") + "\nEND\nexit " + c.code + "\n"
			if err := programs.Write(runner, text); err != nil {
				t.Fatal(err)
			}
			args := []string{"ran.sh", runner, "test"}
			if c.selector != "" {
				args = append(args, "-run", c.selector)
			}
			cmd := exec.CommandContext(t.Context(), "sh", append(args, "./...")...)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != c.want {
				t.Errorf("it exits with %d, want %d:\n%s", got, c.want, out)
			}
			if !strings.Contains(string(out), c.says) || !strings.Contains(string(out), c.prints[0]) {
				t.Errorf("the output lacks %q or the output of the run:\n%s", c.says, out)
			}
		})
	}
}
