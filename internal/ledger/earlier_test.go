package ledger

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// As long as a file of an earlier process cannot be written to the disk, the anchor does not say that its lines are there.
func TestWhatAnEarlierProcessWroteIsSynced(t *testing.T) {
	dir := t.TempDir()
	anchor := filepath.Join(dir, "anchor")
	files := filepath.Join(dir, "files")
	l, err := Open(files, "audit", Options{Anchor: anchor})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) }) // Its end is that of the test.
	for range 3 {
		if err := l.Append("an entry"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	synced := func() uint64 {
		a, ok, err := readAnchor(anchor)
		if err != nil || !ok {
			t.Fatalf("there is no anchor: %v", err)
		}
		return a.Synced
	}
	before := synced()
	if before > 2 {
		t.Fatalf("%d lines are on the disk already", before)
	}
	// The process is killed here: its goroutine writes nothing more.
	next := &Ledger{dir: files, name: "audit", o: Options{Anchor: anchor}, sizes: map[uint64]int64{}, anchored: anchorFile{path: anchor}}
	numbers, err := numbers(files, "audit")
	if err != nil {
		t.Fatal(err)
	}
	next.earlier, next.unsynced = numbers, true
	if next.anchor, _, err = readAnchor(anchor); err != nil {
		t.Fatal(err)
	}
	next.anchor.Last = Point{Number: 3}
	at := next.path(numbers[0])
	if err := os.Rename(at, at+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at+".away", at); err != nil { // It cannot be opened.
		t.Fatal(err)
	}
	next.sync(false)
	if n := next.anchor.Synced; n != before || !next.unsynced {
		t.Errorf("%d lines are said to be on the disk, want %d", n, before)
	}
	if err := os.Rename(at+".away", at); err != nil {
		t.Fatal(err)
	}
	next.sync(false)
	if n := next.anchor.Synced; n != 3 || next.unsynced || synced() != 3 {
		t.Errorf("%d lines are said to be on the disk, want 3", n)
	}
}
