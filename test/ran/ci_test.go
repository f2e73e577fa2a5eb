package ran

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var testName = regexp.MustCompile(`\bTest[A-Z]\w+`)

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
			together := strings.Contains(line, " -j") && !strings.Contains(line, "lint test-vm-images test-faults-in-process")
			if background || together {
				t.Errorf("%s:%d: something runs next to tests that wait in real time: %s", file, i+1, line)
			}
		}
	}
}

// A test that the second run leaves out exists, and 'make test-faults-of-programs', which CI runs too, has it whole.
func TestWhatCILeavesOutRunsElsewhere(t *testing.T) {
	script, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	targets, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, programs, _ := strings.Cut(string(targets), "\ntest-faults-of-programs:")
	programs, _, _ = strings.Cut(programs, "\n\n")
	found := 0
	for line := range strings.Lines(string(script)) {
		if !strings.HasPrefix(line, "same=") {
			continue
		}
		for _, name := range testName.FindAllString(line, -1) {
			found++
			if !strings.Contains(programs, name) {
				t.Errorf("%s runs nowhere as a whole", name)
			}
			if out, err := exec.CommandContext(t.Context(), "grep", "-rl", "--include=*_test.go", "func "+name+"(", "../../cmd").
				Output(); err != nil {
				t.Errorf("there is no test %s: %v %s", name, err, out)
			}
		}
	}
	if found == 0 {
		t.Error("no test is left out: delete this test")
	}
}
