package ledger_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/ledger"
)

// damages collects what a ledger reports.
type damages struct {
	mu   sync.Mutex
	list []string
}

func (d *damages) add(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, text)
}

func (d *damages) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.list, "|")
}

// timed is an entry with a time: that of line n is n minutes after ten.
type timed struct {
	At time.Time `json:"at"`
	N  int       `json:"n"`
	// Text makes the lines as long as each other, so that a file has four of them.
	Text string `json:"text"`
}

var ten = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

func addTimed(t *testing.T, l *ledger.Ledger, first, last int) {
	t.Helper()
	for n := first; n <= last; n++ {
		if err := l.Append(timed{ten.Add(time.Duration(n) * time.Minute), n, strings.Repeat("x", 200)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// anchored is a ledger with an anchor: five files of four lines each, and after that the bound has removed some of them.
type anchored struct {
	dir, anchor string
	o           ledger.Options
	damages     damages
}

func newAnchored(t *testing.T, files int) *anchored {
	t.Helper()
	parent := t.TempDir()
	a := &anchored{dir: filepath.Join(parent, "audit"), anchor: filepath.Join(parent, "audit.anchor")}
	a.o = ledger.Options{FileSize: 1700, Files: files, Anchor: a.anchor, Boot: "boot-1", OnDamage: a.damages.add}
	return a
}

func (a *anchored) open(t *testing.T) *ledger.Ledger {
	t.Helper()
	return open(t, a.dir, a.o)
}

func (a *anchored) file(n int) string { return filepath.Join(a.dir, fmt.Sprintf("audit-%06d.log", n)) }

// lines returns the lines of a file, each with its end.
func (a *anchored) lines(t *testing.T, n int) [][]byte {
	t.Helper()
	b, err := os.ReadFile(a.file(n))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	return lines[:len(lines)-1]
}

func (a *anchored) write(t *testing.T, n int, lines [][]byte) {
	t.Helper()
	if err := os.WriteFile(a.file(n), bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *anchored) remove(t *testing.T, files ...int) {
	t.Helper()
	for _, n := range files {
		if err := os.Remove(a.file(n)); err != nil {
			t.Fatal(err)
		}
	}
}

// says is what a verification found, in the form of one line for each finding.
func says(v ledger.Verification) string {
	var out []string
	for _, f := range v.Findings {
		s := fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Reason)
		if f.First > 0 {
			s += fmt.Sprintf(" [%d-%d]", f.First, f.Last)
		}
		if !f.After.IsZero() {
			s += f.After.UTC().Format(" after 15:04")
		}
		if !f.Before.IsZero() {
			s += f.Before.UTC().Format(" before 15:04")
		}
		if f.Crash {
			s += " crash"
		}
		out = append(out, s)
	}
	return strings.Join(out, "|")
}

func (a *anchored) verify(t *testing.T, boot string, points ...ledger.Point) ledger.Verification {
	t.Helper()
	end, err := ledger.AtRest(a.anchor, a.o.Known, boot)
	if err != nil {
		t.Fatal(err)
	}
	v, err := ledger.Verify(a.dir, "audit", end, points...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// manipulation is one change of the files of twenty lines in five files, four in each.
type manipulation struct {
	name string
	edit func(t *testing.T, a *anchored)
	want string // what verify says
	torn uint64
}

func manipulations() []manipulation {
	return []manipulation{
		{name: "untouched", edit: func(*testing.T, *anchored) {}},
		{
			name: "the first line removed",
			edit: func(t *testing.T, a *anchored) { a.write(t, 1, a.lines(t, 1)[1:]) },
			want: "audit-000001.log:1: it has number 2 and is the first line: the lines before it were removed [1-1] before 10:02",
		},
		{
			name: "the first line changed",
			edit: func(t *testing.T, a *anchored) { l := a.lines(t, 1); l[0][20] ^= 1; a.write(t, 1, l) },
			want: "audit-000001.log:1: it was changed: its checksum is wrong, and the next line follows what it was [1-1] before 10:02",
		},
		{
			name: "the last lines removed",
			edit: func(t *testing.T, a *anchored) { a.write(t, 5, a.lines(t, 5)[:2]) },
			want: "audit-000005.log:0: the last line is number 18, and number 20 was written: the lines after it were removed [19-20] after 10:18 before 10:20",
		},
		{
			name: "the last line changed",
			edit: func(t *testing.T, a *anchored) { l := a.lines(t, 5); l[3][20] ^= 1; a.write(t, 5, l) },
			want: "audit-000005.log:4: it was changed: its checksum is wrong [20-20] after 10:19 before 10:20",
		},
		{
			name: "the last line changed and the one before it removed",
			edit: func(t *testing.T, a *anchored) {
				l := a.lines(t, 5)
				l[3][20] ^= 1
				a.write(t, 5, slices.Delete(l, 2, 3))
			},
			want: "audit-000005.log:3: it was changed: its checksum is wrong, and the lines after it were removed [19-20] after 10:18 before 10:20",
		},
		{
			name: "the first half removed",
			edit: func(t *testing.T, a *anchored) { a.remove(t, 1, 2); a.write(t, 3, a.lines(t, 3)[2:]) },
			want: "audit-000003.log:1: it has number 11 and is the first line: the lines before it were removed; missing: audit-000001.log, audit-000002.log [1-10] before 10:11",
		},
		{
			name: "lines in the middle removed",
			edit: func(t *testing.T, a *anchored) { a.write(t, 3, slices.Delete(a.lines(t, 3), 1, 3)) },
			want: "audit-000003.log:2: it has number 12 and follows number 9: the lines between them were removed [10-11] after 10:09 before 10:12",
		},
		{
			name: "a changed byte in the middle",
			edit: func(t *testing.T, a *anchored) { l := a.lines(t, 3); l[1][30] ^= 4; a.write(t, 3, l) },
			want: "audit-000003.log:2: it was changed: its checksum is wrong, and the next line follows what it was [10-10] after 10:09 before 10:11",
		},
		{
			name: "the newest file emptied",
			edit: func(t *testing.T, a *anchored) { a.write(t, 5, nil) },
			want: "audit-000004.log:0: the last line is number 16, and number 20 was written: the lines after it were removed; empty: audit-000005.log [17-20] after 10:16 before 10:20",
		},
		{
			name: "a file in the middle emptied",
			edit: func(t *testing.T, a *anchored) { a.write(t, 2, nil) },
			want: "audit-000003.log:1: it has number 9 and follows number 4: the lines between them were removed; empty: audit-000002.log [5-8] after 10:04 before 10:09",
		},
		{
			name: "the oldest file emptied",
			edit: func(t *testing.T, a *anchored) { a.write(t, 1, nil) },
			want: "audit-000002.log:1: it has number 5 and is the first line: the lines before it were removed; empty: audit-000001.log [1-4] before 10:05",
		},
		{
			name: "the newest file removed",
			edit: func(t *testing.T, a *anchored) { a.remove(t, 5) },
			want: "audit-000004.log:0: the last line is number 16, and number 20 was written: the lines after it were removed; missing: audit-000005.log [17-20] after 10:16 before 10:20",
		},
		{
			name: "a file in the middle removed",
			edit: func(t *testing.T, a *anchored) { a.remove(t, 3) },
			want: "audit-000004.log:1: it has number 13 and follows number 8: the lines between them were removed; missing: audit-000003.log [9-12] after 10:08 before 10:13",
		},
		{
			name: "the oldest file removed",
			edit: func(t *testing.T, a *anchored) { a.remove(t, 1) },
			want: "audit-000002.log:1: it has number 5 and is the first line: the lines before it were removed; missing: audit-000001.log [1-4] before 10:05",
		},
		{
			name: "all files removed",
			edit: func(t *testing.T, a *anchored) { a.remove(t, 1, 2, 3, 4, 5) },
			want: ":0: no line is there: the lines after it were removed; missing: audit-000001.log, audit-000002.log, audit-000003.log, audit-000004.log, audit-000005.log [1-20] before 10:20",
		},
		{
			name: "the directory removed",
			edit: func(t *testing.T, a *anchored) {
				if err := os.RemoveAll(a.dir); err != nil {
					t.Fatal(err)
				}
			},
			want: ":0: no line is there: the lines after it were removed; missing: audit-000001.log, audit-000002.log, audit-000003.log, audit-000004.log, audit-000005.log [1-20] before 10:20",
		},
		{
			name: "a line without its end",
			edit: func(t *testing.T, a *anchored) {
				l := a.lines(t, 5)
				l[3] = bytes.TrimSuffix(l[3], []byte("\n"))
				a.write(t, 5, l)
			},
			torn: 1,
		},
		{
			name: "the second half of the last line removed",
			edit: func(t *testing.T, a *anchored) {
				l := a.lines(t, 5)
				l[3] = l[3][:len(l[3])/2]
				a.write(t, 5, l)
			},
			want: "audit-000005.log:0: the last line is number 19, and number 20 was written: the lines after it were removed [20-20] after 10:19 before 10:20",
			torn: 1,
		},
		{
			name: "two places",
			edit: func(t *testing.T, a *anchored) { a.remove(t, 2); a.write(t, 5, a.lines(t, 5)[:3]) },
			want: "audit-000003.log:1: it has number 9 and follows number 4: the lines between them were removed; missing: audit-000002.log [5-8] after 10:04 before 10:09|" +
				"audit-000005.log:0: the last line is number 19, and number 20 was written: the lines after it were removed [20-20] after 10:19 before 10:20",
		},
		{
			name: "an added line with a right checksum",
			edit: func(t *testing.T, a *anchored) {
				l := a.lines(t, 3)
				a.write(t, 3, slices.Insert(l, 1, ledger.OlderLine(`{"n":1}`)))
			},
			want: "audit-000003.log:2: it has no number: it was added after 10:09",
		},
		{
			name: "added garbage",
			edit: func(t *testing.T, a *anchored) {
				a.write(t, 3, slices.Insert(a.lines(t, 3), 1, []byte("garbage\n")))
			},
			want: "audit-000003.log:2: its checksum is wrong, and no line is missing: it was added after 10:09",
		},
		{
			name: "added garbage at the end",
			edit: func(t *testing.T, a *anchored) { a.write(t, 5, append(a.lines(t, 5), []byte("garbage\n"))) },
			want: "audit-000005.log:5: its checksum is wrong: it was changed, or added after 10:20",
		},
		{
			name: "replaced by an older copy",
			edit: func(t *testing.T, a *anchored) {
				copied := a.lines(t, 5)[:1]
				a.remove(t, 5)
				a.write(t, 5, copied)
			},
			want: "audit-000005.log:0: the last line is number 17, and number 20 was written: the lines after it were removed [18-20] after 10:17 before 10:20",
		},
		{
			name: "the whole chain written again with other entries",
			edit: func(t *testing.T, a *anchored) {
				other := newAnchored(t, 100)
				l := other.open(t)
				for n := 1; n <= 20; n++ {
					if err := l.Append(timed{ten.Add(time.Duration(n) * time.Minute), n, strings.Repeat("y", 200)}); err != nil {
						t.Fatal(err)
					}
				}
				closed(t, l)
				for n := 1; n <= 5; n++ {
					a.write(t, n, other.lines(t, n))
				}
			},
			want: "audit-000005.log:4: line 20 is not the one that was written: a hash that was kept of it differs after 10:19",
		},
	}
}

// What is not as it was written is found, with the lines, the times and the file.
func TestVerifySaysWhatIsMissing(t *testing.T) {
	for _, c := range manipulations() {
		t.Run(c.name, func(t *testing.T) {
			a := newAnchored(t, 100)
			l := a.open(t)
			addTimed(t, l, 1, 20)
			closed(t, l)
			if n := len(a.lines(t, 5)); n != 4 {
				t.Fatalf("the last file has %d lines", n)
			}
			c.edit(t, a)
			v := a.verify(t, "boot-1")
			if got := says(v); got != c.want || v.Torn != c.torn || (v.Broken == nil) != (c.want == "") {
				t.Errorf("it says\n%s, and %d incomplete lines; want\n%s, and %d", got, v.Torn, c.want, c.torn)
			}
			// A daemon that starts now goes on after the last line that was written, and the place stays visible.
			l = a.open(t)
			addTimed(t, l, 21, 22)
			after, err := l.Verify(t.Context())
			if err != nil || after.Last != 22 || (after.Broken == nil) != (c.want == "") {
				t.Errorf("after the next start it says %s, the last line is %d, %v", says(after), after.Last, err)
			}
		})
	}
}

// The same while the ledger is written. It also notices that files are removed, cut off or replaced, and goes on in a new one.
func TestChangesOfFilesWhileWriting(t *testing.T) {
	damage := map[string]string{
		"the last lines removed":       "audit-000005.log was cut off",
		"the newest file emptied":      "audit-000005.log was cut off",
		"the newest file removed":      "audit-000005.log was removed",
		"all files removed":            "audit-000005.log was removed",
		"the directory removed":        "audit-000005.log was removed",
		"replaced by an older copy":    "audit-000005.log was replaced by another file",
		"a file in the middle removed": "audit-000003.log was removed",
		"the oldest file removed":      "audit-000001.log was removed",
		"a file in the middle emptied": "audit-000002.log was changed",
		"added garbage at the end":     "audit-000005.log was written to by another process",
	}
	seen := 0
	for _, c := range manipulations() {
		t.Run(c.name, func(t *testing.T) {
			a := newAnchored(t, 100)
			l := a.open(t)
			addTimed(t, l, 1, 20)
			c.edit(t, a)
			v, err := l.Verify(t.Context())
			// What is behind the end of what was written is not read.
			if err != nil || c.name != "added garbage at the end" && (says(v) != c.want || v.Torn != c.torn) {
				t.Errorf("it says\n%s, and %d incomplete lines, %v; want\n%s, and %d", says(v), v.Torn, err, c.want, c.torn)
			}
			if _, err := l.Sync(t.Context()); err != nil {
				t.Error(err)
			}
			if want, ok := damage[c.name]; ok {
				seen++
				if got := a.damages.String(); !strings.Contains(got, want) || !strings.Contains(got, "while gpushared ran") {
					t.Errorf("it reports %q, want %q", got, want)
				}
			} else if c.want == "" && c.torn == 0 && a.damages.String() != "" {
				t.Errorf("it reports %q", a.damages.String())
			}
			addTimed(t, l, 21, 23)
			v, err = l.Verify(t.Context())
			if err != nil || v.Last != 23 || l.Lost() != 0 || (v.Broken == nil) != (c.want == "") {
				t.Errorf("later it says %s, the last line is %d, %d are lost, %v", says(v), v.Last, l.Lost(), err)
			}
		})
	}
	if seen != len(damage) {
		t.Errorf("%d of %d reports were seen", seen, len(damage))
	}
}

// A line that is written after its file was removed is not lost: it is in a new file, and the chain goes on from memory.
func TestTheNextLineNoticesARemovedFile(t *testing.T) {
	a := newAnchored(t, 100)
	l := a.open(t)
	addTimed(t, l, 1, 2)
	a.remove(t, 1)
	addTimed(t, l, 3, 4)
	if got := a.damages.String(); got != "audit-000001.log was removed while gpushared ran" {
		t.Errorf("it reports %q", got)
	}
	if n := len(a.lines(t, 2)); n != 2 {
		t.Errorf("the next file has %d lines", n)
	}
	closed(t, l)
	if got, want := says(
		a.verify(t, "boot-1"),
	), "audit-000002.log:1: it has number 3 and is the first line: the lines before it were removed; missing: audit-000001.log [1-2] before 10:03"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

// What the bound removes is no finding; what another removes is one also then.
func TestTheBoundIsNoAttack(t *testing.T) {
	a := newAnchored(t, 3)
	l := a.open(t)
	addTimed(t, l, 1, 20)
	if v, err := l.Verify(t.Context()); err != nil || v.Broken != nil || v.First != 9 || v.Last != 20 {
		t.Errorf("%+v, %v", v, err)
	}
	closed(t, l)
	if v := a.verify(t, "boot-1"); v.Broken != nil || v.First != 9 || !v.Anchored || v.Since != 0 {
		t.Errorf("%+v", v)
	}
	a.remove(t, 3)
	if got, want := says(
		a.verify(t, "boot-1"),
	), "audit-000004.log:1: it has number 13 and is the first line: the lines before it were removed; missing: audit-000003.log [9-12] before 10:13"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

// killed makes the files those of a host without power, or of a killed daemon: the anchor is that of before the end.
func (a *anchored) killed(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	b, err := os.ReadFile(a.anchor)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, l)
	if err := os.WriteFile(a.anchor, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A loss of power explains only what was not on the disk, and only on the next boot.
func TestLossesOfPowerAndRemovalsDiffer(t *testing.T) {
	for _, c := range []struct {
		name, boot  string
		last        int    // the last line that is left
		half        uint64 // 1: and half of the one after it
		want, later string
		reported    string
	}{
		{
			"killed", "boot-1", 12, 0, "", "", "",
		},
		{
			"no power, unsynced lines missing", "boot-2", 10, 0,
			"audit-000003.log:0: the last line is number 10, and number 12 was written: the lines after it may have been lost with the power of the host, before they were on the disk [11-12] after 10:10 before 10:12 crash",
			"audit-000003.log:3: it has number 13 and follows number 10: the lines between them may have been lost with the power of the host, before they were on the disk [11-12] after 10:10 before 10:13 crash",
			"lines 11 to 12 of the audit are missing, and may have been lost with the power of the host, before they were on the disk; it goes on after number 12",
		},
		{
			"no power, and a synced line missing", "boot-2", 9, 0,
			"audit-000003.log:0: the last line is number 9, and number 12 was written: the lines after it were removed [10-12] after 10:09 before 10:12",
			"audit-000003.log:2: it has number 13 and follows number 9: the lines between them were removed [10-12] after 10:09 before 10:13",
			"lines 10 to 12 of the audit are missing: they were removed while gpushared did not run; it goes on after number 12",
		},
		{
			"killed, and lines missing", "boot-1", 11, 0,
			"audit-000003.log:0: the last line is number 11, and number 12 was written: the lines after it were removed [12-12] after 10:11 before 10:12",
			"audit-000003.log:4: it has number 13 and follows number 11: the lines between them were removed [12-12] after 10:11 before 10:13",
			"lines 12 to 12 of the audit are missing: they were removed while gpushared did not run; it goes on after number 12",
		},
		{
			"no power, and half of the last line", "boot-2", 11, 1,
			"audit-000003.log:0: the last line is number 11, and number 12 was written: the lines after it may have been lost with the power of the host, before they were on the disk [12-12] after 10:11 before 10:12 crash",
			"audit-000003.log:5: it has number 13 and follows number 11: the lines between them may have been lost with the power of the host, before they were on the disk [12-12] after 10:11 before 10:13 crash",
			"lines 12 to 12 of the audit are missing, and may have been lost with the power of the host, before they were on the disk; it goes on after number 12",
		},
		{
			"no power, and half of a line before the last", "boot-2", 10, 1,
			"audit-000003.log:0: the last line is number 10, and number 12 was written: the lines after it may have been lost with the power of the host, before they were on the disk [11-12] after 10:10 before 10:12 crash",
			"audit-000003.log:4: it has number 13 and follows number 10: the lines between them may have been lost with the power of the host, before they were on the disk [11-12] after 10:10 before 10:13 crash",
			"lines 11 to 12 of the audit are missing, and may have been lost with the power of the host, before they were on the disk; it goes on after number 12",
		},
		{
			"no power, and half of a synced line", "boot-2", 9, 1,
			"audit-000003.log:0: the last line is number 9, and number 12 was written: the lines after it were removed [10-12] after 10:09 before 10:12",
			"audit-000003.log:2: it was changed: its checksum is wrong; lines after it were removed [10-12] after 10:09 before 10:13",
			"lines 10 to 12 of the audit are missing: they were removed while gpushared did not run; it goes on after number 12",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAnchored(t, 100)
			l := a.open(t)
			addTimed(t, l, 1, 10)
			if end, err := l.Sync(t.Context()); err != nil || end.Point().Number != 10 || !end.Point().At.Equal(ten.Add(10*time.Minute)) {
				t.Fatalf("%+v, %v", end.Point(), err)
			}
			addTimed(t, l, 11, 12)
			a.killed(t, l)
			lines := a.lines(t, 3)
			left := lines[:c.last-8]
			if c.half > 0 {
				next := lines[c.last-8]
				left = append(slices.Clone(left), next[:len(next)/2])
			}
			a.write(t, 3, left)
			if v := a.verify(t, c.boot); says(v) != c.want || v.Torn != c.half {
				t.Errorf("it says\n%s, and %d incomplete lines; want\n%s", says(v), v.Torn, c.want)
			}
			a.o.Boot = c.boot
			l = a.open(t)
			if got := a.damages.String(); got != c.reported {
				t.Errorf("it reports %q, want %q", got, c.reported)
			}
			if v, err := l.Verify(t.Context()); err != nil || says(v) != c.want {
				t.Errorf("before the next line it says\n%s, want\n%s", says(v), c.want)
			}
			addTimed(t, l, 13, 13)
			torn := c.half
			if strings.Contains(c.later, "changed") {
				torn = 0 // It is the finding.
			}
			if v, err := l.Verify(t.Context()); err != nil || says(v) != c.later || v.Torn != torn {
				t.Errorf("later it says\n%s, and %d incomplete lines, %v; want\n%s", says(v), v.Torn, err, c.later)
			}
		})
	}
}

// afterPowerCut has the files after a start that found lines 11 and 12 lost with the power, and ended before it wrote a line: it was
// closed, or killed.
func afterPowerCut(t *testing.T, kill bool) *anchored {
	t.Helper()
	a := newAnchored(t, 100)
	l := a.open(t)
	addTimed(t, l, 1, 10)
	if _, err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	addTimed(t, l, 11, 12)
	a.killed(t, l)
	a.write(t, 3, a.lines(t, 3)[:2])
	a.o.Boot = "boot-2"
	l = a.open(t)
	if kill {
		a.killed(t, l)
	} else {
		closed(t, l)
	}
	a.damages.list = nil
	return a
}

// A start that ends before it has written a line makes no attack of a loss of power, and hides none.
func TestALossOfPowerSurvivesAShortStart(t *testing.T) {
	const lost = "may have been lost with the power of the host, before they were on the disk"
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed: %v", kill), func(t *testing.T) {
			a := afterPowerCut(t, kill)
			if got := says(a.verify(t, "boot-2")); !strings.Contains(got, lost+" [11-12]") {
				t.Errorf("at rest it says %s", got)
			}
			a.o.Known = ledger.Point{Number: 12} // as it was kept in the state, without a line
			l := a.open(t)
			if got := a.damages.String(); !strings.Contains(got, "lines 11 to 12 of the audit are missing, and "+lost) {
				t.Errorf("it reports %q", got)
			}
			addTimed(t, l, 13, 16)
			want := "audit-000003.log:3: it has number 13 and follows number 10: the lines between them " + lost + " [11-12] after 10:10 before 10:13 crash"
			if v, err := l.Verify(t.Context()); err != nil || says(v) != want {
				t.Errorf("later it says\n%s, %v; want\n%s", says(v), err, want)
			}
			closed(t, l)
			// What is added or removed next to the lost lines afterwards was not lost with them.
			lines := a.lines(t, 3)
			a.write(t, 3, slices.Insert(slices.Clone(lines), 2, []byte("garbage\n")))
			want = "audit-000003.log:3: it was changed: its checksum is wrong; lines after it were removed [11-12] after 10:10 before 10:13"
			if got := says(a.verify(t, "boot-2")); got != want {
				t.Errorf("with a line between it says\n%s, want\n%s", got, want)
			}
			a.write(t, 3, slices.Delete(lines, 1, 2))
			want = "audit-000003.log:2: it has number 13 and follows number 9: the lines between them were removed [10-12] after 10:09 before 10:13"
			if got := says(a.verify(t, "boot-2")); got != want {
				t.Errorf("without line 10 it says\n%s, want\n%s", got, want)
			}
		})
		t.Run(fmt.Sprintf("killed: %v, and a line removed", kill), func(t *testing.T) {
			a := afterPowerCut(t, kill)
			a.write(t, 3, a.lines(t, 3)[:1])
			if got := says(a.verify(t, "boot-2")); !strings.Contains(got, "were removed [10-12]") {
				t.Errorf("at rest it says %s", got)
			}
			l := a.open(t)
			if got := a.damages.String(); !strings.Contains(got, "lines 10 to 12 of the audit are missing: they were removed") {
				t.Errorf("it reports %q", got)
			}
			addTimed(t, l, 13, 13)
			if v, err := l.Verify(t.Context()); err != nil || !strings.Contains(says(v), "were removed [10-12]") || v.Findings[0].Crash {
				t.Errorf("later it says %s, %v", says(v), err)
			}
		})
	}
}

// While the anchor cannot be written no file is removed: nothing would say that the bound did it.
func TestNoFileIsRemovedWithoutTheAnchor(t *testing.T) {
	a := newAnchored(t, 3)
	a.o.Anchor = filepath.Join(filepath.Dir(a.dir), "missing", "audit.anchor")
	a.anchor = a.o.Anchor
	l := a.open(t)
	addTimed(t, l, 1, 20)
	if v, err := l.Verify(t.Context()); err != nil || v.Broken != nil || v.First != 1 || v.Last != 20 ||
		!strings.Contains(a.damages.String(), "cannot be written") {
		t.Errorf("%+v, %v, %s", v, err, a.damages.String())
	}
	first := a.lines(t, 1)
	a.remove(t, 1)
	if v, err := l.Verify(t.Context()); err != nil ||
		!strings.Contains(says(v), "the lines before it were removed; missing: audit-000001.log [1-4]") {
		t.Errorf("without the first file it says %s, %v", says(v), err)
	}
	a.write(t, 1, first)
	if err := os.Mkdir(filepath.Dir(a.anchor), 0o700); err != nil {
		t.Fatal(err)
	}
	addTimed(t, l, 21, 24)
	if v, err := l.Verify(t.Context()); err != nil || v.Broken != nil || v.First != 13 || v.Last != 24 {
		t.Errorf("later %+v, %v", v, err)
	}
	closed(t, l)
	if v := a.verify(t, "boot-1"); v.Broken != nil || v.First != 13 {
		t.Errorf("at rest %+v", v)
	}
}

// A killed daemon has written a line and not yet the anchor. That is no damage.
func TestALineAheadOfTheAnchor(t *testing.T) {
	a := newAnchored(t, 100)
	l := a.open(t)
	addTimed(t, l, 1, 3)
	b, err := os.ReadFile(a.anchor)
	if err != nil {
		t.Fatal(err)
	}
	addTimed(t, l, 4, 4)
	closed(t, l)
	if err := os.WriteFile(a.anchor, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if v := a.verify(t, "boot-1"); v.Broken != nil || v.Last != 4 {
		t.Errorf("%+v", v)
	}
	l = a.open(t)
	addTimed(t, l, 5, 5)
	if v, err := l.Verify(t.Context()); err != nil || v.Broken != nil || v.Last != 5 || a.damages.String() != "" {
		t.Errorf("%+v, %v, %s", v, err, a.damages.String())
	}
}

// An older version wrote the files: the chain goes on, and verify says from which line on the begin is known.
func TestFilesOfAVersionWithoutAnchors(t *testing.T) {
	a := newAnchored(t, 100)
	anchor := a.o.Anchor
	a.o.Anchor = ""
	l := a.open(t)
	addTimed(t, l, 1, 10)
	closed(t, l)
	a.remove(t, 1) // by the bound, or not: nothing says so
	a.o.Anchor = anchor
	if v := a.verify(t, "boot-1"); v.Broken != nil || v.Anchored {
		t.Errorf("%+v", v)
	}
	l = a.open(t)
	addTimed(t, l, 11, 12)
	v, err := l.Verify(t.Context())
	if err != nil || v.Broken != nil || v.First != 5 || v.Last != 12 || v.Since != 10 || !v.Anchored || a.damages.String() != "" {
		t.Errorf("%+v, %v, %s", v, err, a.damages.String())
	}
	closed(t, l)
	a.remove(t, 2)
	if got, want := says(
		a.verify(t, "boot-1"),
	), "audit-000003.log:1: it has number 9 and is the first line: the lines before it were removed; missing: audit-000002.log [5-8] before 10:09"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

// A removed anchor is reported, and the line that is known from elsewhere still shows what is missing. One that is removed
// while the daemon runs, too.
func TestARemovedAnchor(t *testing.T) {
	a := newAnchored(t, 100)
	l := a.open(t)
	addTimed(t, l, 1, 10)
	end, err := l.Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a.anchor); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Sync(t.Context()); err != nil || a.damages.String() != "the anchor of the audit was removed while gpushared ran" {
		t.Errorf("%s, %v", a.damages.String(), err)
	}
	if v := a.verify(t, "boot-1"); v.Broken != nil || !v.Anchored {
		t.Errorf("it was not written again: %+v", v)
	}
	closed(t, l)
	if err := os.Remove(a.anchor); err != nil {
		t.Fatal(err)
	}
	a.write(t, 3, a.lines(t, 3)[:1])
	a.o.Known, a.damages.list = end.Point(), nil
	want := "audit-000003.log:0: the last line is number 9, and number 10 was written: the lines after it were removed [10-10] after 10:09 before 10:10"
	if got := says(a.verify(t, "boot-1")); !strings.Contains(got, "the anchor was removed") || !strings.Contains(got, want) {
		t.Errorf("it says %q", got)
	}
	l = a.open(t)
	if got := a.damages.String(); !strings.Contains(got, "the anchor of the audit was removed") ||
		!strings.Contains(got, "lines 10 to 10 of the audit are missing") {
		t.Errorf("it reports %q", got)
	}
	addTimed(t, l, 11, 11)
	if v, err := l.Verify(t.Context()); err != nil || v.Last != 11 || v.Broken == nil || v.Broken.First != 10 {
		t.Errorf("%+v, %v", v, err)
	}
}

// A hash from the journal of another host is compared too.
func TestPointsFromElsewhere(t *testing.T) {
	a := newAnchored(t, 3)
	l := a.open(t)
	addTimed(t, l, 1, 6)
	old := point(t, l)
	addTimed(t, l, 7, 15)
	middle := point(t, l)
	addTimed(t, l, 16, 20)
	newest := point(t, l)
	closed(t, l)
	other := middle
	other.Hash = strings.Repeat("0", 64)
	for _, c := range []struct {
		name  string
		point ledger.Point
		want  string
	}{
		{"the newest", newest, ""},
		{"one in the middle", middle, ""},
		{"another hash", other, "audit-000004.log:3: line 15 is not the one that was written: a hash that was kept of it differs after 10:14"},
		{"another hash of the newest", ledger.Point{Number: 20, Hash: other.Hash}, ":0: line 20 had the hash " + other.Hash + ", and gpushared knows another one: the lines were written again"},
		{"one of a removed file", old, ":0: line 6 cannot be compared: the oldest that is there is number 9"},
		{"one that is not there", ledger.Point{Number: 25, Hash: other.Hash}, ":0: line 25 was written, and the last that is there is number 20: the lines after it were removed [21-25] after 10:20"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := says(a.verify(t, "boot-1", c.point)); got != c.want {
				t.Errorf("it says %q, want %q", got, c.want)
			}
		})
	}
}

func point(t *testing.T, l *ledger.Ledger) ledger.Point {
	t.Helper()
	end, err := l.Flush(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return end.Point()
}

// BenchmarkAnchor is what a line costs with its anchor and the check of its file.
func BenchmarkAnchor(b *testing.B) {
	dir := b.TempDir()
	l, err := ledger.Open(filepath.Join(dir, "audit"), "audit", ledger.Options{Queue: 1 << 10, Anchor: filepath.Join(dir, "anchor")})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close(b.Context()) }()
	for n := range b.N {
		if err := l.Append(timed{ten, n, strings.Repeat("x", 200)}); err != nil {
			b.Fatal(err)
		}
		if n%512 == 0 {
			if _, err := l.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
}
