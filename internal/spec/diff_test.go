package spec_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/internal/spec"
)

func TestDiff(t *testing.T) {
	for name, c := range map[string]struct{ before, after, want string }{
		"same":          {"a\nb\n", "a\nb\n", ""},
		"from nothing":  {"", "a\nb\n", "--- before\n+++ after\n@@ -0,0 +1,2 @@\n+a\n+b\n"},
		"to nothing":    {"a\n", "", "--- before\n+++ after\n@@ -1 +0,0 @@\n-a\n"},
		"one line":      {"1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nx\n6\n7\n8\n9\n", "--- before\n+++ after\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n"},
		"no newline":    {"a", "a\n", "--- before\n+++ after\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"},
		"two far apart": {"x\n1\n2\n3\n4\n5\n6\n7\nx\n", "1\n2\n3\n4\n5\n6\n7\n", "--- before\n+++ after\n@@ -1,4 +1,3 @@\n-x\n 1\n 2\n 3\n@@ -6,4 +5,3 @@\n 5\n 6\n 7\n-x\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, spec.Diff(c.before, c.after)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestDiffApplies gives the diff to patch(1), the authority on what a diff means.
func TestDiffApplies(t *testing.T) {
	if _, err := exec.LookPath("patch"); err != nil {
		t.Skip("patch(1) is missing")
	}
	dir := t.TempDir()
	text := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n", "d\n"}), 0, 30).Draw(t, "lines"), "")
	})
	rapid.Check(t, func(t *rapid.T) {
		before, after := text.Draw(t, "before"), text.Draw(t, "after")
		diff := spec.Diff(before, after)
		if before == after {
			return
		}
		file := filepath.Join(dir, "f")
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		patch := exec.Command("patch", "--fuzz=0", "-s", "-o", file+".new", file)
		patch.Stdin = strings.NewReader(diff)
		if out, err := patch.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s\n%s", err, out, diff)
		}
		got, err := os.ReadFile(file + ".new")
		if err != nil || string(got) != after {
			t.Fatalf("patched to %q, want %q (%v)\n%s", got, after, err, diff)
		}
	})
}

func TestDiffOfUnrelatedTextsIsBounded(t *testing.T) {
	before := strings.Repeat("before\n", 100_000)
	after := strings.Repeat("after\n", 100_000)
	got := spec.Diff(before, after)
	if strings.Count(got, "\n-before") != 100_000 || strings.Count(got, "\n+after") != 100_000 {
		t.Errorf("the diff of two different texts has %d bytes", len(got))
	}
}
