package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// The times of several runs are added to one file, of which the slowest tests are shown with the run that they were in.
func TestSlowestOfSeveralRuns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "times")
	runs := []struct{ step, in string }{
		{"as root", `{"Action":"pass","Package":"github.com/gpushare/gpushare/mps","Test":"TestA","Elapsed":3}` + "\n" +
			`{"Action":"pass","Package":"github.com/gpushare/gpushare/mps","Test":"TestB","Elapsed":1}` + "\n" +
			`{"Action":"pass","Package":"github.com/gpushare/gpushare/mps","Elapsed":4}` + "\n"},
		{"machines", "--- PASS: TestMachine (700.50s)\nok  \tx\t700s\n"},
	}
	for _, r := range runs {
		var errs strings.Builder
		if code := run([]string{"-times", file, "-step", r.step}, strings.NewReader(r.in), &strings.Builder{}, &errs); code != 0 {
			t.Fatalf("%s: exit code %d: %s", r.step, code, &errs)
		}
	}
	var out, errs strings.Builder
	if code := run([]string{"-times", file, "-slowest", "2"}, strings.NewReader(""), &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "the 2 slowest of 3 tests") ||
		strings.Join(strings.Fields(lines[1]), " ") != "700.5 machines TestMachine" ||
		strings.Join(strings.Fields(lines[2]), " ") != "3.0 as root ./mps TestA" {
		t.Errorf("it shows:\n%s", &out)
	}
	if code := run([]string{"-times", filepath.Join(t.TempDir(), "none"), "-slowest", "2"}, strings.NewReader(""), &out, &errs); code != 1 {
		t.Errorf("without the file: exit code %d", code)
	}
}
