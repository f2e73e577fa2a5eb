package ledger_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/gpushare/internal/ledger"
)

// Entries that were lost until a process ended are counted by the first line of the next one, once, whether it ended by itself or was
// killed.
func TestLostUntilTheEnd(t *testing.T) {
	for name, kill := range map[string]bool{"stopped": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			dir, anchor := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit.anchor")
			o := ledger.Options{Anchor: anchor, Boot: "boot"}
			l := open(t, dir, o)
			add(t, l, 1, 2)
			away := dir + ".away"
			if err := os.Rename(dir, away); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			const lost = 7
			for n := range lost {
				add(t, l, 100+n)
			}
			state, err := os.ReadFile(anchor)
			if err != nil {
				t.Fatal(err)
			}
			closed(t, l)
			if kill { // Nothing of what the end did is there.
				if err := os.WriteFile(anchor, state, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(away, dir); err != nil {
				t.Fatal(err)
			}
			for _, want := range []uint64{lost, 0} {
				again := open(t, dir, o)
				if n := again.Lost(); n != want {
					t.Errorf("%d are lost, want %d", n, want)
				}
				add(t, again, 3)
				closed(t, again)
				if v := verify(t, dir); v.Broken != nil || v.Lost != lost {
					t.Errorf("%d are lost in the lines, want %d: %v", v.Lost, lost, v.Broken)
				}
			}
		})
	}
}
