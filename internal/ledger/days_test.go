package ledger

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func days(t *testing.T) *Days {
	d, err := OpenDays(filepath.Join(t.TempDir(), "ledger"), "usage")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func readDay(t rapid.TB, d *Days, day string) (got []int, skipped int) {
	skipped, err := d.Read(day, func(m json.RawMessage) bool {
		var n int
		if err := json.Unmarshal(m, &n); err != nil {
			t.Fatal(err)
		}
		got = append(got, n)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, skipped
}

func TestDaysHaveAFileEach(t *testing.T) {
	d := days(t)
	for i, day := range []string{"2026-02-01", "2026-01-31", "2026-02-01"} {
		if err := Append(d, day, []int{i, i}); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []string{"usage-sums-2026-01-01.log", "usage-2026-13-01.log", "usage-2026-01-31.log.new", "audit-000001.log"} {
		if err := os.WriteFile(filepath.Join(d.dir, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.List()
	if err != nil || !slices.Equal(list, []string{"2026-01-31", "2026-02-01"}) {
		t.Fatalf("days %v, %v", list, err)
	}
	if got, _ := readDay(t, d, "2026-02-01"); !slices.Equal(got, []int{0, 0, 2, 2}) {
		t.Errorf("read %v", got)
	}
	if got, _ := readDay(t, d, "2026-03-01"); got != nil {
		t.Errorf("read %v of a day without a file", got)
	}
	if err := Replace(d, "2026-02-01", []int{7}); err != nil {
		t.Fatal(err)
	}
	if got, _ := readDay(t, d, "2026-02-01"); !slices.Equal(got, []int{7}) {
		t.Errorf("read %v after Replace", got)
	}
	if n, err := d.Size("2026-02-01"); err != nil || n != 11 {
		t.Errorf("size %d, %v", n, err)
	}
	if err := Replace(d, "2026-02-01", []int(nil)); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove("2026-02-01"); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDays(d.dir, "usage"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "usage-2026-01-31.log.new")); err == nil {
		t.Error("the file of an interrupted Replace is still there")
	}
}

// A file may end anywhere after a power cut, and any bytes may follow. Every whole line before is read, and every line that is
// appended later.
func TestDaysSkipDamagedLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "days")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		d, err := OpenDays(dir, "usage")
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(1, 20).Draw(t, "entries")
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		if err := Append(d, "2026-02-01", all); err != nil {
			t.Fatal(err)
		}
		path := d.path("2026-02-01")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cut := rapid.IntRange(0, len(b)).Draw(t, "cut")
		junk := strings.Repeat(
			rapid.SampledFrom([]string{"", "x", "\x00", "deadbeef 1"}).Draw(t, "junk"),
			rapid.SampledFrom([]int{1, 100, 3 * maxLine}).Draw(t, "times"),
		)
		if err := os.WriteFile(path, append(b[:cut:cut], junk...), 0o600); err != nil {
			t.Fatal(err)
		}
		whole := strings.Count(string(b[:cut]), "\n")
		if cut > 0 && junk == "" && cut < len(b) && b[cut] == '\n' {
			whole++ // Only its newline is missing, which the next Append adds.
		}
		if got, _ := readDay(t, d, "2026-02-01"); !slices.Equal(got, all[:whole]) {
			t.Fatalf("before the next entry read %v, want %v", got, all[:whole])
		}
		if err := Append(d, "2026-02-01", []int{100}); err != nil {
			t.Fatal(err)
		}
		got, _ := readDay(t, d, "2026-02-01")
		if want := append(all[:whole:whole], 100); !slices.Equal(got, want) {
			t.Fatalf("read %v, want %v", got, want)
		}
	})
}

// An entry that lacks only its newline is read, because the next Append completes it.
func TestDaysReadAnEntryWithoutItsNewline(t *testing.T) {
	d := days(t)
	if err := Append(d, "2026-02-01", []int{1, 2}); err != nil {
		t.Fatal(err)
	}
	if size, err := d.Size("2026-02-01"); err != nil || os.Truncate(d.path("2026-02-01"), size-1) != nil {
		t.Fatal(err)
	}
	if got, skipped := readDay(t, d, "2026-02-01"); skipped != 0 || !slices.Equal(got, []int{1, 2}) {
		t.Errorf("read %v, and skipped %d", got, skipped)
	}
}

// A disk that is full keeps what was there, and no half lines.
func TestDaysOnAFullDisk(t *testing.T) {
	d := days(t)
	if err := Append(d, "2026-02-01", []int{1}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", d.path("2026-02-02")); err != nil {
		t.Fatal(err)
	}
	if err := Append(d, "2026-02-02", []int{1}); err == nil {
		t.Error("an entry was written through a symbolic link")
	}
	if err := os.Symlink("/dev/full", d.path("2026-02-01")+".new"); err != nil {
		t.Fatal(err)
	}
	if err := Replace(d, "2026-02-01", []int{2}); err == nil || !strings.Contains(err.Error(), "cannot write the usage ledger") {
		t.Errorf("Replace returned %v", err)
	}
	if got, _ := readDay(t, d, "2026-02-01"); fmt.Sprint(got) != "[1]" {
		t.Errorf("read %v", got)
	}
}
