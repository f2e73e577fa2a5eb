package tools

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Terminal is the description of the screen for tic: it can be cleared and written to at a place, and that is all, so
// that a program has to say what it means.
const Terminal = "gpushare-screen"

const (
	columns = 180
	rows    = 40
)

// Terminfo describes the screen to curses.
func Terminfo() string {
	return Terminal + `|a screen that can only be cleared and written to,
	am, cols#` + fmt.Sprint(columns) + `, lines#` + fmt.Sprint(rows) + `,
	clear=\E[H\E[2J, cup=\E[%i%p1%d;%p2%dH, cr=\r, ind=\n,
`
}

// Screen is what such a terminal shows. Its zero value is an empty one.
type Screen struct {
	cells    [rows][columns]rune
	row, col int
	rest     []byte // of a sequence or a character that has not come whole
}

// Write shows what a program wrote. What it cannot show is an error: the program does not believe the description.
func (s *Screen) Write(p []byte) (int, error) {
	b := append(s.rest, p...)
	for len(b) > 0 {
		n, err := s.next(b)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			break
		}
		b = b[n:]
	}
	s.rest = append([]byte(nil), b...)
	return len(p), nil
}

// next shows one character or obeys one sequence, and says how long it was: 0 when it has not come whole.
func (s *Screen) next(b []byte) (int, error) {
	switch {
	case b[0] == '\x1b':
		return s.execute(b)
	case b[0] == '\r':
		s.col = 0
		return 1, nil
	case b[0] == '\n':
		s.row = min(s.row+1, rows-1)
		return 1, nil
	case b[0] < ' ':
		return 0, fmt.Errorf("cannot show the control character %#x", b[0])
	case !utf8.FullRune(b):
		return 0, nil
	}
	r, n := utf8.DecodeRune(b)
	if s.col == columns { // It wraps when there is more, not when the line is full.
		s.row, s.col = min(s.row+1, rows-1), 0
	}
	s.cells[s.row][s.col] = r
	s.col++
	return n, nil
}

// execute carries out a sequence: \E[2J, \E[H or \E[row;columnH.
func (s *Screen) execute(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, nil
	}
	if b[1] != '[' {
		return 0, fmt.Errorf("cannot obey the sequence %q", b[:2])
	}
	end := 2
	for end < len(b) && (b[end] == ';' || b[end] >= '0' && b[end] <= '9') {
		end++
	}
	if end == len(b) {
		return 0, nil
	}
	arguments := string(b[2:end])
	switch {
	case b[end] == 'J' && arguments == "2":
		s.cells = [rows][columns]rune{}
	case b[end] == 'H' && arguments == "":
		s.row, s.col = 0, 0
	case b[end] == 'H':
		var row, col int
		if _, err := fmt.Sscanf(arguments, "%d;%d", &row, &col); err != nil || row < 1 || row > rows || col < 1 || col > columns {
			return 0, fmt.Errorf("cannot go to %q", arguments)
		}
		s.row, s.col = row-1, col-1
	default:
		return 0, fmt.Errorf("cannot obey the sequence %q", b[:end+1])
	}
	return end + 1, nil
}

// String is what it shows, line by line, without what is blank at their ends.
func (s *Screen) String() string {
	lines := make([]string, rows)
	for i, cells := range s.cells {
		for _, r := range cells {
			if r == 0 {
				r = ' '
			}
			lines[i] += string(r)
		}
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}
