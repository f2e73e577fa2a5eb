package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type entry struct {
	N    int    `json:"n"`
	Text string `json:"text,omitempty"`
}

func open(t *testing.T, dir string, o ledger.Options) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(dir, "audit", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, l) })
	return l
}

func closed(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, dir string) (ns []int, skipped int) {
	t.Helper()
	skipped, err := ledger.Read(dir, "audit", ledger.End{}, func(l *ledger.Line) bool {
		var e entry
		if err := json.Unmarshal(l.Entry, &e); err != nil {
			t.Fatal(err)
		}
		ns = append(ns, e.N)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns, skipped
}

func add(t *testing.T, l *ledger.Ledger, ns ...int) {
	t.Helper()
	for _, n := range ns {
		if err := l.Append(entry{N: n}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAppendAndRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	if ns, skipped := read(t, dir); ns != nil || skipped != 0 {
		t.Errorf("no ledger reads as %v, %d", ns, skipped)
	}
	l := open(t, dir, ledger.Options{})
	add(t, l, 1, 2, 3)
	closed(t, l)
	if err := l.Append(entry{N: 9}); err != nil || l.Lost() != 1 {
		t.Errorf("after the end: %v, lost %d", err, l.Lost())
	}
	add(t, open(t, dir, ledger.Options{}), 4)
	if ns, skipped := read(t, dir); !cmp.Equal(ns, []int{1, 2, 3, 4}) || skipped != 0 {
		t.Errorf("read %v, skipped %d", ns, skipped)
	}
	if err := l.Append(func() {}); err == nil {
		t.Error("what does not encode was taken")
	}
	var first []int
	if _, err := ledger.Read(
		dir, "audit", ledger.End{}, func(*ledger.Line) bool { first = append(first, 0); return len(first) < 2 },
	); err != nil ||
		len(first) != 2 {
		t.Errorf("stopped after two, it read %d (%v)", len(first), err)
	}
}

func TestTornAndDamagedLines(t *testing.T) {
	for name, c := range map[string]struct {
		damage  func([]byte) []byte
		want    []int
		skipped int
	}{
		"torn":          {func(b []byte) []byte { return b[:len(b)-3] }, []int{1, 2, 4}, 1},
		"only a letter": {func(b []byte) []byte { return append(b, 'x') }, []int{1, 2, 3, 4}, 1},
		"flipped bit":   {func(b []byte) []byte { b[len(b)-3] ^= 1; return b }, []int{1, 2, 4}, 1},
		"garbage":       {func(b []byte) []byte { return append(b, "\nzzzzzzzz {}\n\x00\n"...) }, []int{1, 2, 3, 4}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, ledger.Options{})
			add(t, l, 1, 2, 3)
			closed(t, l)
			file := filepath.Join(dir, "audit-000001.log")
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, c.damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			add(t, open(t, dir, ledger.Options{}), 4)
			if ns, skipped := read(t, dir); !cmp.Equal(ns, c.want) || skipped != c.skipped {
				t.Errorf("read %v, skipped %d", ns, skipped)
			}
		})
	}
}

func TestBounded(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, ledger.Options{FileSize: 1000, Files: 3})
	for n := range 500 {
		add(t, l, n)
	}
	var total int64
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if len(files) != 3 || total > 3000 {
		t.Errorf("%d files, %d bytes", len(files), total)
	}
	ns, _ := read(t, dir)
	if len(ns) < 15 || ns[len(ns)-1] != 499 || ns[0] != 500-len(ns) || l.Lost() != 0 {
		t.Errorf("%d entries from %d to %d, lost %d", len(ns), ns[0], ns[len(ns)-1], l.Lost())
	}
}

func TestManyWriters(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, ledger.Options{Queue: 10_000})
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for n := range 200 {
				if err := l.Append(entry{N: n, Text: strings.Repeat("x", n)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	if _, err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ns, skipped := read(t, dir); len(ns) != 1600 || skipped != 0 {
		t.Errorf("%d entries, %d skipped", len(ns), skipped)
	}
}

// TestFullDisk fills a real filesystem: lines are lost and counted, Append never waits, and later lines are complete.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Skipf("no small filesystem to fill: mounting one needs root and a mount namespace that permits it (%v)", err)
	}
	l := open(t, dir, ledger.Options{})
	t.Cleanup(func() {
		closed(t, l)
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	for n := range 600 {
		if err := l.Append(entry{N: n, Text: strings.Repeat("x", 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	lost := l.Lost()
	ns, skipped := read(t, dir)
	if lost == 0 || len(ns)+int(lost) != 600 || skipped != 0 {
		t.Fatalf("%d entries, %d lost, %d skipped", len(ns), lost, skipped)
	}
	// Space is freed.
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=1m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	add(t, l, 1000)
	if ns, skipped := read(t, dir); ns[len(ns)-1] != 1000 || skipped != 0 || l.Lost() != lost {
		t.Errorf("with space again: last %d, %d skipped, %d lost", ns[len(ns)-1], skipped, l.Lost())
	}
}

// TestAppendNeverWaits: without its directory, where it cannot be made again, the ledger neither blocks nor fails.
func TestAppendNeverWaits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "removed")
	l := open(t, dir, ledger.Options{Queue: 4})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		if err := l.Append(entry{N: n}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.Lost() != 100 {
		t.Errorf("lost %d of 100", l.Lost())
	}
}

func BenchmarkAppend(b *testing.B) {
	l, err := ledger.Open(b.TempDir(), "audit", ledger.Options{Queue: 1 << 16})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(context.Background())
	for n := range b.N {
		if err := l.Append(entry{N: n, Text: fmt.Sprint(n)}); err != nil {
			b.Fatal(err)
		}
	}
}
