package board_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/board"
)

// TestSiteLeavesOutWhatIsWrong: one file that cannot be used does not take the others away.
func TestSiteLeavesOutWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	const good = "name: NVIDIA X\nshort: SHORT\ngrid: 8\nprofiles: [{name: 1g.5gb, id: 19, slices: 1, size: 1, starts: [0], max: 1, memory_mib: 4864}]\n"
	for name, text := range map[string]string{
		"a.yaml": strings.Replace(good, "SHORT", "x", 1), "z.yaml": strings.Replace(good, "SHORT", "z", 1),
		"same.yaml":  strings.Replace(good, "SHORT", "x", 1),
		"off.yaml":   strings.Replace(strings.Replace(good, "SHORT", "off", 1), "starts: [0]", "starts: [8]", 1),
		"wide.yaml":  strings.Replace(strings.Replace(good, "SHORT", "wide", 1), "grid: 8", "grid: 4000000000", 1),
		"key.yaml":   good + "colour: red\n",
		"empty.yaml": "",
		"notes.txt":  "none", ".hidden.yaml": "none",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, wrong := board.Site(dir)
	if len(got) != 2 || got[0].Short != "x" || got[1].Short != "z" {
		t.Errorf("boards %+v", got)
	}
	if len(wrong) != 5 {
		t.Errorf("%d findings: %v", len(wrong), wrong)
	}
	if got, wrong := board.Site(filepath.Join(dir, "none")); len(got)+len(wrong) > 0 {
		t.Errorf("no directory: %v, %v", got, wrong)
	}
}
