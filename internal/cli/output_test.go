package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestCommand(t *testing.T) {
	for want, argv := range map[string][]string{
		"":                                   nil,
		"python train.py":                    {"python", "train.py"},
		strings.Repeat("ü", 48):              {strings.Repeat("ü", 48)},
		strings.Repeat("ü", 47) + "…":        {strings.Repeat("ü", 49)},
		strings.Repeat("a ", 23) + "a" + "…": {strings.TrimSpace(strings.Repeat("a ", 40))},
	} {
		if got := command(argv); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Every column begins at the same place in every row, whatever is in the cells, and nothing in them reaches the terminal.
func TestTableProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 5).Draw(t, "columns")
		rows := make([][]string, rapid.IntRange(1, 6).Draw(t, "rows"))
		for i := range rows {
			rows[i] = rapid.SliceOfN(rapid.String(), columns, columns).Draw(t, "row")
		}
		var out bytes.Buffer
		(&app{io: Stdio{Out: &out}}).table(rows)
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != len(rows) {
			t.Fatalf("%d rows come out as %d lines: %q", len(rows), len(lines), out.String())
		}
		for i, line := range lines {
			at := 0
			for c := range columns {
				cell := []rune(rows[i][c]) // The table made it printable.
				if rest := []rune(line); at < len(rest) && !strings.HasPrefix(string(rest[at:]), string(cell)) {
					t.Fatalf("cell %d of %q is not at %d", c, line, at)
				}
				widest := 0
				for r := range rows {
					widest = max(widest, utf8.RuneCountInString(rows[r][c]))
				}
				at += widest + 2
			}
			if strings.ContainsFunc(line, unicode.IsControl) {
				t.Fatalf("a control character gets through: %q", line)
			}
		}
	})
}

// Colours take no width, and only words of state have one.
func TestTableColours(t *testing.T) {
	rows := func() [][]string {
		return [][]string{
			{"GPU", "STATE", "NOTE"},
			{"0", "ok", "held"},
			{"1", "held: in use", "x"},
			{"2", "running, over its limit", "y"},
			{"3", "waiting, position 1", "z"},
		}
	}
	var plain, colored bytes.Buffer
	(&app{io: Stdio{Out: &plain}}).table(rows())
	(&app{io: Stdio{Out: &colored}, color: true}).table(rows())
	if strings.Contains(plain.String(), "\x1b") {
		t.Errorf("there are colours without being asked for:\n%q", plain.String())
	}
	want := strings.NewReplacer(
		"held: in use", "\x1b[31mheld\x1b[0m: in use", "over its limit", "\x1b[31mover its limit\x1b[0m", "waiting,",
		"\x1b[33mwaiting\x1b[0m,",
	).Replace(plain.String())
	if diff := cmp.Diff(want, colored.String()); diff != "" {
		t.Error(diff)
	}
}

func TestIsTerminal(t *testing.T) {
	if isTerminal(io.Discard) || isTerminal(&bytes.Buffer{}) {
		t.Error("what is no file is taken for a terminal")
	}
}
