package ledger_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/ledger"
)

// chained writes lines over several files and returns their directory.
func chained(t *testing.T, first int) string {
	t.Helper()
	dir := t.TempDir()
	l := open(t, dir, ledger.Options{FileSize: 600, Files: 100})
	for n := range 20 {
		add(t, l, first+n)
	}
	closed(t, l)
	return dir
}

func verify(t *testing.T, dir string) ledger.Verification {
	t.Helper()
	v, err := ledger.Verify(dir, "audit", ledger.End{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func editFile(t *testing.T, dir string, file int, edit func(lines [][]byte) [][]byte) {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("audit-%06d.log", file))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Join(edit(bytes.SplitAfter(b, []byte("\n"))), nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyFindsTheFirstBrokenLine(t *testing.T) {
	flip := func(lines [][]byte) [][]byte { lines[1][20] ^= 1; return lines }
	for _, c := range []struct {
		name string
		edit func(t *testing.T, dir string)
		want string // of file, line and reason; empty: the chain holds
		torn uint64
	}{
		{"untouched", func(*testing.T, string) {}, "", 0},
		{"a changed bit", func(t *testing.T, dir string) { editFile(t, dir, 2, flip) }, "audit-000002.log:2: it was changed", 0},
		{"a removed line", func(t *testing.T, dir string) {
			editFile(t, dir, 2, func(l [][]byte) [][]byte { return slices.Delete(l, 1, 2) })
		}, "audit-000002.log:2: it has number 8 and follows number 6: the lines between them were removed", 0},
		{"a line written again with its checksum", func(t *testing.T, dir string) {
			other := chained(t, 77)
			editFile(t, dir, 2, func(l [][]byte) [][]byte {
				editFile(t, other, 2, func(o [][]byte) [][]byte { l[1] = o[1]; return o })
				return l
			})
		}, "audit-000002.log:2: it does not follow", 0},
		{"two lines exchanged", func(t *testing.T, dir string) {
			editFile(t, dir, 2, func(l [][]byte) [][]byte { l[0], l[1] = l[1], l[0]; return l })
		}, "audit-000002.log:1: it has number 7 and follows number 5", 0},
		{"a line twice", func(t *testing.T, dir string) {
			editFile(t, dir, 2, func(l [][]byte) [][]byte { return slices.Insert(l, 1, l[0]) })
		}, "audit-000002.log:2: it has number 6 and follows number 6: it was added, or moved", 0},
		{"a removed file", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "audit-000002.log")); err != nil {
				t.Fatal(err)
			}
		}, "audit-000003.log:1: it has number 11 and follows number 5", 0},
		{"the oldest files removed, as by a rotation", func(t *testing.T, dir string) {
			for _, f := range []string{"audit-000001.log", "audit-000002.log"} {
				if err := os.Remove(filepath.Join(dir, f)); err != nil {
					t.Fatal(err)
				}
			}
		}, "", 0},
		{"half a line at the end", func(t *testing.T, dir string) {
			editFile(t, dir, 4, func(l [][]byte) [][]byte { n := len(l) - 2; l[n] = l[n][:len(l[n])/2]; return l[:n+1] })
		}, "", 1},
		{"half a line, and the daemon went on", func(t *testing.T, dir string) {
			editFile(t, dir, 4, func(l [][]byte) [][]byte { n := len(l) - 2; l[n] = l[n][:len(l[n])/2]; return l[:n+1] })
			add(t, open(t, dir, ledger.Options{}), 50, 51)
		}, "", 1},
		{"garbage at the end, and the daemon went on", func(t *testing.T, dir string) {
			editFile(t, dir, 4, func(l [][]byte) [][]byte { return append(l, make([]byte, 300)) })
			add(t, open(t, dir, ledger.Options{}), 50)
		}, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := chained(t, 10)
			c.edit(t, dir)
			v := verify(t, dir)
			got := ""
			if v.Broken != nil {
				got = fmt.Sprintf("%s:%d: %s", v.Broken.File, v.Broken.Line, v.Broken.Reason)
			}
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || v.Torn != c.torn {
				t.Errorf("found %q with %d incomplete lines, want %q and %d", got, v.Torn, c.want, c.torn)
			}
			if c.want == "" && (v.Head == "" || v.Last == 0 || v.Lines != v.Last-v.First+1) {
				t.Errorf("%+v", v)
			}
		})
	}
}

// The chain goes on over restarts and rotations, and counts what was lost.
func TestTheChainGoesOn(t *testing.T) {
	dir := t.TempDir()
	for n := range 6 {
		l := open(t, dir, ledger.Options{FileSize: 500, Files: 4})
		add(t, l, 10*n, 10*n+1, 10*n+2)
		end, err := l.Flush(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v, err := ledger.Verify(dir, "audit", end); err != nil || v.Broken != nil || v.Last != uint64(3*n+3) || v.Lost != 0 {
			t.Errorf("%+v, %v", v, err)
		}
		closed(t, l)
	}
	big := open(t, dir, ledger.Options{})
	if err := big.Append(entry{Text: strings.Repeat("x", 100_000)}); err != nil {
		t.Fatal(err)
	}
	add(t, big, 100)
	closed(t, big)
	if v := verify(t, dir); v.Broken != nil || v.Last != 19 || v.Lost != 1 {
		t.Errorf("%+v", v)
	}
}

// A ledger of a version without a chain is continued with one.
func TestTheChainBeginsAfterOlderLines(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "audit-000001.log"), ledger.OlderLine(`{"n":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	add(t, open(t, dir, ledger.Options{}), 2, 3)
	if v := verify(t, dir); v.Broken != nil || v.Older != 1 || v.First != 1 || v.Last != 2 {
		t.Errorf("%+v", v)
	}
	if ns, skipped := read(t, dir); !slices.Equal(ns, []int{1, 2, 3}) || skipped != 0 {
		t.Errorf("read %v, skipped %d", ns, skipped)
	}
	// A line without a number later was added.
	f, err := os.OpenFile(filepath.Join(dir, "audit-000001.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(ledger.OlderLine(`{"n":4}`)); err != nil {
		t.Fatal(err)
	}
	if v := verify(t, dir); v.Broken == nil || v.Broken.Line != 4 {
		t.Errorf("%+v", v.Broken)
	}
}
