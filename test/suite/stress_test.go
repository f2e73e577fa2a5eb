package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/enumeration"
)

const sometimes = `package sometimes

import (
	"os"
	"testing"
)

var again = func() bool { _, err := os.Stat("ran"); return err == nil }()

func TestSteady(t *testing.T) {}

func TestSometimes(t *testing.T) {
	if os.Mkdir("ran", 0o700) == nil {
		t.Error("the first time")
	}
}

func TestEnds(t *testing.T) {
	if again && os.Mkdir("ended", 0o700) == nil {
		os.Exit(3)
	}
}
`

// A test that fails once in many runs is listed with its rate and the order of the tests that repeats it.
func TestStressListsWhatFailsSometimes(t *testing.T) {
	enumeration.Long(t)
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"go.mod": "module example.org/m\n\ngo 1.26\n", "sometimes/s_test.go": sometimes} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOFLAGS", "-trimpath")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	s := stress{time: 3 * time.Second, load: 1, count: 2, dir: "build", out: &out}
	flaky, err := s.run(ctx, []string{"./sometimes"})
	if err != nil || !flaky {
		t.Fatalf("flaky %v, %v:\n%s", flaky, err, &out)
	}
	for _, want := range []string{
		"./sometimes TestSometimes: 1 of ",
		"./sometimes (the process): 1 of ",
		"go test ./sometimes -short -count=2 -shuffle=",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "TestSteady") {
		t.Errorf("a test is listed that did not fail:\n%s", &out)
	}
}
