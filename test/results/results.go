// Package results reads what 'go test' prints, as JSON or as text with -v, and prints what a reader wants of it: the packages, and
// the output of what failed. It runs nothing.
package results

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Test is a finished test of the highest level, or a package when Name is empty.
type Test struct {
	Package, Name string
	Result        string // pass, fail, skip
	Seconds       float64
	Output        string // of a test that failed or was skipped, with its subtests
}

// event is a line of 'go test -json'.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of a package that does not build
	Elapsed                       float64
}

// module is cut from the names of packages.
const module = "github.com/gpushare/gpushare"

// Read reads until the end. What is printed on the way goes to out: text that is no JSON as it is.
func Read(in io.Reader, out io.Writer) ([]Test, error) {
	r := reader{out: out, output: map[[2]string]*strings.Builder{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(line)
		}
		if err == io.EOF {
			return r.tests, nil
		}
		if err != nil {
			return r.tests, fmt.Errorf("cannot read the results: %w", err)
		}
	}
}

type reader struct {
	out    io.Writer
	tests  []Test
	output map[[2]string]*strings.Builder // by package and test
}

// verbose is the line of a test of the highest level in the text of -v.
var verbose = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)`)

func (r *reader) line(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		if m := verbose.FindStringSubmatch(line); m != nil {
			seconds, _ := strconv.ParseFloat(m[3], 64) // The expression allows only numbers.
			r.tests = append(r.tests, Test{Name: m[2], Result: strings.ToLower(m[1]), Seconds: seconds})
		}
		fmt.Fprint(r.out, line)
		return
	}
	e.Package = Short(e.Package)
	top, _, _ := strings.Cut(e.Test, "/")
	key := [2]string{e.Package, top}
	switch {
	case e.Action == "build-output":
		fmt.Fprint(r.out, e.Output)
	case e.Action == "output":
		if r.output[key] == nil {
			r.output[key] = &strings.Builder{}
		}
		r.output[key].WriteString(e.Output)
	case e.Test != top: // The end of a subtest. Its output is kept with that of its test.
	case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
		r.end(key, e)
	}
}

func (r *reader) end(key [2]string, e event) {
	t := Test{Package: e.Package, Name: e.Test, Result: e.Action, Seconds: e.Elapsed}
	text := ""
	if b := r.output[key]; b != nil {
		text = b.String()
	}
	delete(r.output, key)
	switch {
	case t.Name == "":
		// A test that did not end, as in a panic, has its output still.
		for k, b := range r.output {
			if k[0] == t.Package {
				if t.Result == "fail" {
					fmt.Fprint(r.out, b.String())
				}
				delete(r.output, k)
			}
		}
		if t.Result != "fail" {
			lines := strings.Split(strings.TrimSpace(text), "\n")
			text = lines[len(lines)-1] + "\n" // "ok …", or "? … [no test files]"
		}
		fmt.Fprint(r.out, text)
	case t.Result == "fail":
		fmt.Fprint(r.out, text)
	}
	if t.Result != "pass" {
		t.Output = text
	}
	r.tests = append(r.tests, t)
}

// Short is a package as a person writes it in the root of the module.
func Short(pkg string) string {
	if rest, ok := strings.CutPrefix(pkg, module); ok {
		return "." + rest
	}
	return pkg
}

// Slowest are the tests that took longest, the slowest first. The time of a parallel test contains what it waited for others.
func Slowest(tests []Test, n int) []Test {
	out := slices.DeleteFunc(slices.Clone(tests), func(t Test) bool { return t.Name == "" })
	slices.SortStableFunc(out, func(a, b Test) int {
		switch {
		case a.Seconds > b.Seconds:
			return -1
		case a.Seconds < b.Seconds:
			return 1
		}
		return 0
	})
	return out[:min(n, len(out))]
}
