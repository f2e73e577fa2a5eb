package remote

import (
	"fmt"
	"strings"
	"unicode"
)

// Quote writes words for the shell of the user on a host, which ssh gives one text. A backslash before a character takes its meaning in
// every shell; within quotes, shells differ. A word with a control character is refused: no shell has a backslash for a line break.
func Quote(words []string) (string, error) {
	var b strings.Builder
	for i, word := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		if word == "" {
			b.WriteString("''")
		}
		for _, r := range word {
			if unicode.IsControl(r) || r == unicode.ReplacementChar {
				return "", fmt.Errorf("%q has a character that no shell takes", word)
			}
			if r < 0x80 && !plain(r) {
				b.WriteByte('\\')
			}
			b.WriteRune(r)
		}
	}
	return b.String(), nil
}

// plain reports whether no shell reads an ASCII character as more than itself, wherever it is in a word.
func plain(r rune) bool {
	return r|0x20 >= 'a' && r|0x20 <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:,@+", r)
}
