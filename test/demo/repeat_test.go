package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRepeat(t *testing.T) {
	dir := t.TempDir()
	n := 0
	var out strings.Builder
	code := repeat(t.Context(), 3, dir, &out, func(w io.Writer) int {
		n++
		fmt.Fprintf(w, "The virtual GPU itself counted: vision 30.%d%%, speech 69.9%%.\n", n)
		if n == 2 {
			fmt.Fprintln(w, "the demo failed: a reason")
			return 1
		}
		return 0
	})
	text := out.String()
	for _, want := range []string{"run 1 of 3 passed in 0 s: vision 30.1%, speech 69.9%.", "run 2 of 3 FAILED in 0 s: the demo failed: a reason", "\n2 of 3 passed, "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if code != 1 {
		t.Errorf("one run failed, and the exit code is %d", code)
	}
	b, err := os.ReadFile(filepath.Join(dir, "demo-failed-2.log"))
	if err != nil || !strings.Contains(string(b), "a reason") {
		t.Errorf("the output of the failed run was not kept: %v: %s", err, b)
	}
	if code := repeat(t.Context(), 2, dir, io.Discard, func(io.Writer) int { return 0 }); code != 0 {
		t.Errorf("all runs passed, and the exit code is %d", code)
	}
}
