package tools

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Terminal is the name of the screen's description for tic. The terminal can only be cleared and written to at a
// position, so that the output is easy to parse.
const Terminal = "gpushare-screen"

const (
	columns = 180
	rows    = 40
)

// Terminfo returns the description of the screen for curses.
func Terminfo() string {
	return Terminal + `|a screen that can only be cleared and written to,
	am, cols#` + fmt.Sprint(columns) + `, lines#` + fmt.Sprint(rows) + `,
	clear=\E[H\E[2J, cup=\E[%i%p1%d;%p2%dH, cr=\r, ind=\n,
`
}

// Screen is the content of such a terminal. Its zero value is an empty screen.
type Screen struct {
	cells    [rows][columns]rune
	row, col int
	rest     []byte // start of an incomplete sequence or character
}

// Write shows the output of a program. Output that does not follow the description is an error.
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

// next shows one character or executes one sequence, and returns its length: 0 when it is incomplete.
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
	if s.col == columns { // It wraps at the next character, not when the line is full.
		s.row, s.col = min(s.row+1, rows-1), 0
	}
	s.cells[s.row][s.col] = r
	s.col++
	return n, nil
}

// execute executes a sequence: \E[2J, \E[H or \E[row;columnH.
func (s *Screen) execute(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, nil
	}
	if b[1] != '[' {
		return 0, fmt.Errorf("cannot execute the sequence %q", b[:2])
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
		return 0, fmt.Errorf("cannot execute the sequence %q", b[:end+1])
	}
	return end + 1, nil
}

// String returns the lines without trailing blanks.
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
