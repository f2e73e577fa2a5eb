package text

import (
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// Visible writes what programs of others print so that a terminal obeys none of it: control characters, and bytes that are no text, are
// written as cat -v does. Line ends, tabs and the carriage returns of progress bars stay. A character that never becomes whole is not
// written.
type Visible struct {
	To   io.Writer
	rest []byte // the beginning of a character
}

// Write writes all whole characters.
func (v *Visible) Write(b []byte) (int, error) {
	all := append(v.rest, b...)
	var out []byte
	for len(all) > 0 && utf8.FullRune(all) {
		r, size := utf8.DecodeRune(all)
		out = appendVisible(out, r, all[:size])
		all = all[size:]
	}
	v.rest = append([]byte(nil), all...)
	if _, err := v.To.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// appendVisible appends one character, which is of these bytes.
func appendVisible(out []byte, r rune, b []byte) []byte {
	switch {
	case r == '\n', r == '\t', r == '\r':
		return append(out, b...)
	case r == utf8.RuneError && len(b) == 1:
		return fmt.Appendf(out, `\x%02x`, b[0])
	case r < 0x20, r == 0x7f:
		return append(out, '^', byte(r)^0x40)
	case unicode.IsControl(r):
		return fmt.Appendf(out, `\u%04x`, r)
	}
	return append(out, b...)
}
