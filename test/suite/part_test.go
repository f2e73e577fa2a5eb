package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/results"
)

const ofEnumerations = `package p

import "testing"

func TestShort(t *testing.T) { t.Parallel() }

func TestLong(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
}

func TestLongWhole(t *testing.T) {
	enumeration.Long(t)
	each(t)
}

func TestSometimesLong(t *testing.T) {
	if t.Name() != "" {
		enumeration.Long(t)
	}
}

func TestCases(t *testing.T) { each(t) }

func each(t *testing.T) { one(t) }

func one(t *testing.T) { _ = enumeration.Runs(1, 5) }
`

// What takes long says so in its first statement; what runs a sample asks for it itself or in a function.
func TestWhatIsLeftIsRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p_test.go"), []byte(ofEnumerations), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readLeft(dir, []string{"p_test.go"})
	if err != nil {
		t.Fatal(err)
	}
	want := left{long: []string{"TestLong", "TestLongWhole"}, sampled: []string{"TestCases"}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(left{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Each test that package enumeration holds back is in one part that runs it whole, and each package is in 'suite test' once.
func TestEveryTestRunsSomewhere(t *testing.T) {
	t.Chdir("../..")
	all, err := packages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]*part{}
	for _, name := range []string{"test", "whole", "faults", "race", "quick"} {
		if parts[name], err = partOf(name, all); err != nil {
			t.Fatal(err)
		}
	}
	var tested []string
	for _, c := range parts["test"].runs {
		tested = append(tested, c.pkgs...)
	}
	held := 0
	for i := range all {
		k := &all[i]
		if n := len(slices.DeleteFunc(slices.Clone(tested), func(p string) bool { return p != k.name })); n != 1 {
			t.Errorf("%s is in 'suite test' %d times", k.name, n)
		}
		for _, name := range k.left.all() {
			held++
			whole := slices.Contains(parts["whole"].selected, name)
			fault := k.name == faultPackage &&
				slices.ContainsFunc(parts["faults"].selected, func(s string) bool { return strings.HasPrefix(name, s) })
			if whole == fault {
				t.Errorf("%s %s: in 'suite whole' %t, in 'suite faults' %t", k.name, name, whole, fault)
			}
		}
		for _, name := range k.left.sampled {
			if slices.Contains(k.left.long, name) {
				t.Errorf("%s %s takes long and runs a sample", k.name, name)
			}
		}
	}
	if held < 50 {
		t.Errorf("only %d tests are held back: the reading is wrong", held)
	}
	for _, p := range slices.Concat(programs, simulations, []string{faultPackage}) {
		if !slices.ContainsFunc(all, func(k pkg) bool { return k.name == p }) {
			t.Errorf("there is no package %s", p)
		}
	}
	if p, err := partOf("everything", all); err == nil {
		t.Errorf("a part that does not exist: %v", p)
	}
}

// The end names what did not run: what was skipped here with its reason, what is left to another part, and what belongs to none.
func TestTheSummaryNamesWhatDidNotRun(t *testing.T) {
	p := part{
		name:     "test",
		leftHere: []pkg{{name: "./a", left: left{long: []string{"TestLong"}, sampled: []string{"TestCases"}}}, {name: "./b"}},
		alsoLeft: []string{"a GPU: 'make hwtest'"},
	}
	var out strings.Builder
	p.summary([]results.Test{
		{Package: "./a"},
		{Package: "./a", Name: "TestShort", Result: "pass"},
		{
			Package: "./a",
			Name:    "TestLong",
			Result:  "skip",
			Output:  "=== RUN   TestLong\n    a_test.go:9: " + enumeration.Left + "\n--- SKIP: TestLong (0.00s)\n",
		},
		{
			Package: "./a",
			Name:    "TestRoot",
			Result:  "skip",
			Output:  "    a_test.go:9: some\n    a_test.go:10: needs root\n--- SKIP: TestRoot (0.00s)\n",
		},
		{Package: "./a", Name: "TestBroken", Result: "fail"},
	}, time.Minute, &out)
	const want = `
test: 1 tests of 1 packages passed in 1m0s, 1 failed, 1 skipped
  skipped here, needs root: Root

left to 'make test-whole': 1 tests that take long; 1 ran a sample of their cases, with *
  ./a: Cases* Long

not part of it:
  a GPU: 'make hwtest'
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A selector that matches no test is a failure, however well the others passed.
func TestWhatIsSelectedMustRun(t *testing.T) {
	p := part{selected: []string{"TestKilled", "TestGone"}}
	ran := []results.Test{{Name: "TestKilledAgain", Result: "pass"}}
	if err := p.unselected(ran); err == nil || !strings.HasSuffix(err.Error(), "selected and did not run: TestGone") {
		t.Errorf("a test that does not exist: %v", err)
	}
	if err := p.unselected(append(ran, results.Test{Name: "TestGone", Result: "skip"})); err != nil {
		t.Errorf("a test that was skipped has said why: %v", err)
	}
}
