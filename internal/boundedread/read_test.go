package boundedread_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

func TestTrusted(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, size int) {
		if err := os.WriteFile(path(name), bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("empty", 0)
	write("exact", 5000)
	write("longer", 5001)
	if err := os.Symlink("exact", path("link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.OpenFile(path("sparse"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(sparse.Truncate(1<<40), sparse.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		size int
		err  error
	}{
		{"empty", 0, nil},
		{"exact", 5000, nil},
		{"longer", 0, boundedread.ErrTooLarge},
		{"sparse", 0, boundedread.ErrTooLarge},
		{"link", 5000, nil},
		{"fifo", 0, boundedread.ErrType},
		{".", 0, boundedread.ErrType},
		{"missing", 0, fs.ErrNotExist},
	} {
		b, err := boundedread.Trusted(path(c.name), 5000)
		if !errors.Is(err, c.err) || len(b) != c.size {
			t.Errorf("%s: %d bytes, %v; want %d, %v", c.name, len(b), err, c.size, c.err)
		}
	}
	if _, err := boundedread.Trusted(os.DevNull, 10); !errors.Is(err, boundedread.ErrType) {
		t.Errorf("a device is read: %v", err)
	}
	if b, cut, err := boundedread.TrustedPrefix(path("longer"), 5000); err != nil || !cut || len(b) != 5000 {
		t.Errorf("the beginning of a longer file: %d bytes, cut %v, %v", len(b), cut, err)
	}
	if b, cut, err := boundedread.TrustedPrefix(path("exact"), 5000); err != nil || cut || len(b) != 5000 {
		t.Errorf("the whole of a file: %d bytes, cut %v, %v", len(b), cut, err)
	}
}

func TestOfUserFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("text"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	if b, err := boundedread.OfUser(t.Context(), file, 1, 10); err != nil || string(b) != "text" {
		t.Errorf("a file: %q, %v", b, err)
	}
	if _, err := boundedread.OfUser(t.Context(), link, 1, 10); !errors.Is(err, boundedread.ErrType) {
		t.Errorf("a link is followed: %v", err)
	}
	if _, err := boundedread.OfUser(t.Context(), file, 1, 3); !errors.Is(err, boundedread.ErrTooLarge) {
		t.Errorf("a longer file: %v", err)
	}
}

func TestOfProcess(t *testing.T) {
	pid := os.Getpid()
	want, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	b, cut, err := boundedread.OfProcess(pid, "cgroup", boundedread.Process)
	if err != nil || cut || !bytes.Equal(b, want) {
		t.Errorf("it read %q, cut %v, %v; want %q", b, cut, err, want)
	}
	if b, cut, err := boundedread.OfProcess(pid, "status", 10); err != nil || !cut || len(b) != 10 {
		t.Errorf("the beginning: %q, cut %v, %v", b, cut, err)
	}
	b, cut, err = boundedread.Memory(t.Context(), pid, "cmdline", uint32(os.Getuid()), boundedread.Command)
	if name, _, _ := bytes.Cut(b, []byte{0}); err != nil || cut || string(name) != os.Args[0] {
		t.Errorf("the command line: %q, cut %v, %v", b, cut, err)
	}
}

func TestAll(t *testing.T) {
	if b, err := boundedread.All(strings.NewReader("12345"), 5); err != nil || string(b) != "12345" {
		t.Errorf("as long as the limit: %q, %v", b, err)
	}
	if b, err := boundedread.All(strings.NewReader("123456"), 5); !errors.Is(err, boundedread.ErrTooLarge) || b != nil {
		t.Errorf("longer than the limit: %q, %v", b, err)
	}
	if b, cut, err := boundedread.Prefix(endless{}, 5000); err != nil || !cut || len(b) != 5000 {
		t.Errorf("an endless stream: %d bytes, cut %v, %v", len(b), cut, err)
	}
	broken := errors.New("broken")
	if _, err := boundedread.All(io.MultiReader(strings.NewReader("1"), failing{broken}), 5); !errors.Is(err, broken) {
		t.Errorf("a broken stream: %v", err)
	}
	if _, err := boundedread.All(failing{}, 5); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a stream that returns nothing: %v", err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 11)
	for _, c := range []struct {
		name, text string
		want       []string
		long       int
	}{
		{"empty", "", nil, 0},
		{"with an end", "a\nb\n", []string{"a", "b"}, 0},
		{"without an end", "a\nb", []string{"a", "b"}, 0},
		{"empty lines", "\n\na\n", []string{"", "", "a"}, 0},
		{"carriage returns", "a\r\nb\r\n", []string{"a", "b"}, 0},
		{"as long as the limit", "1234567890\na\n", []string{"1234567890", "a"}, 0},
		{"a long line is left out", "a\n" + long + "\nb\n", []string{"a", "b"}, 1},
		{"a very long line", strings.Repeat(long, 100) + "\nb\n", []string{"b"}, 1},
		{"a long line at the end", "a\n" + long + long, []string{"a"}, 1},
	} {
		l := boundedread.NewLines(strings.NewReader(c.text), 10+10) // 16 is the smallest buffer of bufio
		if c.long > 0 {
			l = boundedread.NewLines(strings.NewReader(strings.ReplaceAll(c.text, long, long+long)), 20)
		}
		var got []string
		for {
			line, ok := l.Next()
			if !ok {
				break
			}
			got = append(got, string(line))
		}
		if !slices.Equal(got, c.want) || l.Long() != c.long || l.Err() != nil {
			t.Errorf("%s: %q, %d long, %v; want %q, %d long", c.name, got, l.Long(), l.Err(), c.want, c.long)
		}
	}
	broken := errors.New("broken")
	l := boundedread.NewLines(failing{broken}, 20)
	if _, ok := l.Next(); ok || !errors.Is(l.Err(), broken) {
		t.Errorf("a broken stream ends with %v", l.Err())
	}
}

func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	const files = 1200 // more than two portions
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	if err := boundedread.EachName(dir, func(names []string) bool {
		for _, n := range names {
			seen[n] = true
		}
		return true
	}); err != nil || len(seen) != files {
		t.Errorf("%d of %d names, %v", len(seen), files, err)
	}
	calls := 0
	if err := boundedread.EachName(dir, func([]string) bool { calls++; return false }); err != nil || calls != 1 {
		t.Errorf("it continued after the end: %d calls, %v", calls, err)
	}
	for _, c := range []struct {
		limit int
		cut   bool
	}{{files, false}, {files - 1, true}, {100, true}} {
		entries, cut, err := boundedread.Entries(dir, c.limit)
		if err != nil || cut != c.cut || len(entries) != c.limit {
			t.Errorf("with a limit of %d: %d entries, cut %v, %v", c.limit, len(entries), cut, err)
		}
		if !slices.IsSortedFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) }) {
			t.Errorf("with a limit of %d the entries are in no order", c.limit)
		}
	}
	if _, _, err := boundedread.Entries(filepath.Join(dir, "0000"), 10); err == nil {
		t.Error("a file is listed")
	}
	if err := boundedread.EachName(filepath.Join(dir, "missing"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
}
