package ran

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// selector is what selects tests, or flags of 'go test'.
var selector = regexp.MustCompile(`\bTest[A-Z]\w+|-(skip|run|short)\b|TESTFLAGS`)

var jobs = regexp.MustCompile(` -j ?[0-9]`)

// Nothing runs next to tests that wait in real time: .ci/run and the targets that it uses start nothing in the background, but for the
// step whose parts wait for nothing.
func TestCIRunsOneThingAtATime(t *testing.T) {
	for _, file := range []string{"../../.ci/run", "../../Makefile"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(b), "\n") {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "#") {
				continue
			}
			words := strings.Fields(line)
			background := len(words) > 0 && words[len(words)-1] == "&" || strings.Contains(line, "nice -n") ||
				strings.Contains(line, "nohup ")
			together := jobs.MatchString(line) && !strings.Contains(line, "lint test-vm-images test-faults ")
			if background || together {
				t.Errorf("%s:%d: something runs next to tests that wait in real time: %s", file, i+1, line)
			}
		}
	}
}

// Everybody who changes something sees what CI runs, and CI what everybody runs: README's commands run as they are printed, as root and as
// an ordinary user. Nothing selects tests in CI but the targets.
func TestCIRunsWhatTheReadmeSays(t *testing.T) {
	b, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	script := string(b)
	for _, want := range []string{"\ntest/readme/here.sh root ", "\ntest/readme/here.sh drawn "} {
		if !strings.Contains(script, want) {
			t.Errorf(".ci/run has no line %q", strings.TrimSpace(want))
		}
	}
	if found := selector.FindString(script); found != "" {
		t.Errorf(".ci/run selects tests: %q", found)
	}
}
