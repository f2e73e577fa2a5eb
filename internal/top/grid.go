package top

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
)

// Color is a colour of a cell. No information is in the colour alone.
type Color int

// The colours.
const (
	NoColor Color = iota
	Red
	Green
	Yellow
	Cyan
)

// Style is how a cell is shown.
type Style struct {
	Color               Color
	Bold, Dim, Reversed bool
}

// The styles of what is shown.
var (
	plain    = Style{}
	heading  = Style{Bold: true}
	faint    = Style{Dim: true}
	good     = Style{Color: Green}
	warning  = Style{Color: Yellow}
	bad      = Style{Color: Red, Bold: true}
	accent   = Style{Color: Cyan}
	selected = Style{Reversed: true}
)

// Cell is one character of a screen. Rune is 0 in the second cell of a wide character.
type Cell struct {
	Rune  rune
	Style Style
}

// Grid is a screen.
type Grid struct {
	Width, Height int
	cells         []Cell
}

func newGrid(w, h int) *Grid {
	g := &Grid{Width: w, Height: h, cells: make([]Cell, w*h)}
	for i := range g.cells {
		g.cells[i].Rune = ' '
	}
	return g
}

// At is one cell.
func (g *Grid) At(x, y int) Cell { return g.cells[y*g.Width+x] }

// put writes text from a cell on, and cuts it at the edge of the screen. It returns the column after it.
func (g *Grid) put(x, y int, s Style, text string) int {
	if y < 0 || y >= g.Height {
		return x
	}
	for _, r := range printable(text) {
		n := columns(r)
		if n == 0 {
			continue
		}
		if x+n > g.Width {
			return g.Width
		}
		g.cells[y*g.Width+x] = Cell{r, s}
		if n == 2 {
			g.cells[y*g.Width+x+1] = Cell{0, s}
		}
		x += n
	}
	return x
}

// restyle gives the cells of a line another style.
func (g *Grid) restyle(y int, s Style) {
	for x := range g.Width {
		g.cells[y*g.Width+x].Style = s
	}
}

// Text is the screen without its styles, without spaces at the ends of lines.
func (g *Grid) Text() string {
	var b strings.Builder
	for y := range g.Height {
		var l strings.Builder
		for x := range g.Width {
			if c := g.At(x, y); c.Rune != 0 {
				l.WriteRune(c.Rune)
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	return b.String()
}

// printable replaces what would change the terminal: names and commands are of other users.
func printable(s string) string { return strings.Map(shownAs, s) }

// shownAs is the character that is shown for one.
func shownAs(r rune) rune {
	if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
		return '\ufffd'
	}
	return r
}

// columns is how many cells a character has: as the library of the terminal counts, so that a row ends where it shows it.
func columns(r rune) int { return displaywidth.Rune(r) }

// wide is how many cells a text has.
func wide(s string) (n int) {
	for _, r := range printable(s) {
		n += columns(r)
	}
	return n
}

// cut shortens a text to a number of cells. What is cut ends with an ellipsis, or has it in its middle, where both ends distinguish.
// It reads the text once: commands of other users are long.
func cut(s string, most int, middle bool) string {
	end, whole := fits(s, most)
	if whole {
		return s
	}
	if most < 1 {
		return ""
	}
	tail, n := len(s), 0
	if middle && most > 4 {
		for tail > 0 {
			r, size := utf8.DecodeLastRuneInString(s[:tail])
			w := columns(shownAs(r))
			if n+w > (most-1)/2 {
				break
			}
			tail, n = tail-size, n+w
		}
	}
	end, _ = fits(s[:end], most-1-n)
	return s[:end] + "…" + s[tail:]
}

// fits is up to where a text has a number of cells at most, and whether that is all of it.
func fits(s string, most int) (end int, whole bool) {
	n := 0
	for i, r := range s {
		if n += columns(shownAs(r)); n > most {
			return i, false
		}
	}
	return len(s), true
}
