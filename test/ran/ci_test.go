package ran

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var testName = regexp.MustCompile(`\bTest[A-Z]\w+`)

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
			together := jobs.MatchString(line) && !strings.Contains(line, "lint test-vm-images test-faults-in-process")
			if background || together {
				t.Errorf("%s:%d: something runs next to tests that wait in real time: %s", file, i+1, line)
			}
		}
	}
}

// What a run leaves out, 'make test-faults-of-programs' runs whole, which CI runs too: each name is that of a test in the packages of that
// target, of no test in another package, and selected by the target.
func TestWhatCILeavesOutRunsWhole(t *testing.T) {
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
	selected := testName.FindAllString(programs, -1)
	left := 0
	for line := range strings.Lines(string(script)) {
		if !strings.HasPrefix(line, "same=") && !strings.HasPrefix(line, "later=") {
			continue
		}
		for _, name := range testName.FindAllString(line, -1) {
			left++
			if !slices.ContainsFunc(selected, func(s string) bool { return strings.HasPrefix(name, s) }) {
				t.Errorf("%s runs nowhere as a whole", name)
			}
			out, _ := exec.CommandContext(t.Context(), "grep", "-rl", "--include=*_test.go", "^func "+name, "../..").Output() // 1: none
			files := strings.Fields(string(out))
			if len(files) == 0 {
				t.Errorf("there is no test %s", name)
			}
			for _, f := range files {
				if dir := filepath.Dir(f); dir != "../../test/node" && dir != "../../cmd/gpushare-nvml" {
					t.Errorf("%s leaves out a test of %s too, which the target does not run", name, dir)
				}
			}
		}
	}
	if left < 10 {
		t.Errorf("only %d tests are left out: the reading is wrong", left)
	}
}
