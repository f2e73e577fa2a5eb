package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/enumeration"
)

// TestOnAVirtualNode runs one measurement with the shipped programs. Its figures mean nothing, but a queue of 4096 kernels that
// runs for no time at all would mean that the measurement is wrong.
func TestOnAVirtualNode(t *testing.T) {
	enumeration.Long(t)
	t.Chdir("../..")
	if _, err := os.Stat("bin/gpusim"); err != nil {
		t.Skip("bin/gpusim is missing: run 'make build' first")
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"-virtual", "testdata/nodes/one-a100-535.yaml", "-only", "drain", "-repeat", "1"}, &out, &errs)
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out.String(), errs.String())
	}
	row := regexp.MustCompile(`\| 0\.25x \| ([0-9.]+)(m?s) \|`).FindStringSubmatch(out.String())
	if row == nil || row[2] == "ms" && len(row[1]) < 3 {
		t.Errorf("the queued work was not measured:\n%s", out.String())
	}
}

func TestRejectsBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-only", "everything"}, {"-repeat", "0"}, {"-window", "1ms"}, {"drain"}} {
		var out, errs strings.Builder
		if code := run(t.Context(), args, &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%v: exit code %d: %s", args, code, errs.String())
		}
	}
}

// TestPartsAreInTheDocumentation: a reader of the document knows each part that -only accepts.
func TestPartsAreInTheDocumentation(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "maintainers", "hardware.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range partNames() {
		if !strings.Contains(string(b), "| `"+name+"` |") {
			t.Errorf("docs/maintainers/hardware.md has no row for %q", name)
		}
	}
}
