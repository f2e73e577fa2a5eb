package spec

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
)

var (
	inPlace    = compiled(`\[\d+\]`)
	syntaxLine = compiled(`^yaml: (?:line (\d+): )?`)
	noAnchor   = compiled(`^unknown anchor '(.*)' referenced$`)
)

// compiled compiles a pattern when it is first used: the command line imports this package in every command.
func compiled(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// unreadable finds the first byte that no YAML may have: the library knows no line for it. Text that starts with the mark of
// UTF-16 is left to the library.
func unreadable(data []byte) *api.FieldError {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil
	}
	line, start := 1, 0
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		message := ""
		switch {
		case r == utf8.RuneError && size == 1:
			message = fmt.Sprintf("byte 0x%02x is not UTF-8: save the file as UTF-8", data[i])
			if data[i] >= 0xa0 {
				message += fmt.Sprintf(" (in Latin-1 it is %c)", rune(data[i]))
			}
		case r == 0:
			message = "a NUL byte is no text: is this the right file?"
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85, r == 0xfffe, r == 0xffff:
			message = fmt.Sprintf("the control character %U is not read: remove it", r)
		case r == '\n':
			line, start = line+1, i+1
		}
		if message != "" {
			return &api.FieldError{Line: line, Column: utf8.RuneCount(data[start:i]) + 1, Message: message}
		}
		i += size
	}
	return nil
}

// causes say in plain words what the library reports, and what to do.
var causes = []struct{ reported, cause string }{
	{"did not find expected ',' or '}'", "a { is not closed, or a comma is missing after one of its values"},
	{"did not find expected ',' or ']'", "a [ is not closed, or a comma is missing after one of its values"},
	{"did not find expected node content", "a value is missing: is a [ or { not closed?"},
	{
		"mapping values are not allowed in this context",
		"a key cannot be here: start it on a line of its own, with the same indentation as the other keys, and put text that has a colon in quotes",
	},
	{
		"did not find expected key",
		"the indentation of a key differs from that of the keys above: use the same number of spaces for all keys of one mapping",
	},
	{
		"did not find expected '-' indicator",
		"the indentation of an item differs from that of the items above: use the same number of spaces before each dash",
	},
	{"could not find expected ':'", "a key has no colon, or more than 1024 bytes: write key: value"},
	{"found unexpected end of stream", "a quote is not closed"},
	{"found character that cannot start any token", "a value cannot start with this character: put it in quotes"},
	{"found incompatible YAML document", "YAML of this version is not read: remove the line that starts with %YAML"},
}

// syntaxError says what is wrong with text that is no YAML.
func syntaxError(data []byte, err error) api.FieldError {
	reported, line := err.Error(), 1
	if m := syntaxLine().FindStringSubmatch(reported); m != nil {
		reported = strings.TrimPrefix(reported, m[0])
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
			if strings.HasPrefix(reported, "did not find expected") { // The library counts these from 0.
				line++
			}
		}
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	line = min(line, len(lines))
	for _, i := range []int{line - 1, line - 2, line} {
		if i < 0 || i >= len(lines) {
			continue
		}
		text := strings.TrimLeft(lines[i], " \t")
		if tab := strings.IndexByte(lines[i][:len(lines[i])-len(text)], '\t'); tab >= 0 && (text != "" || i == line-1) {
			return api.FieldError{
				Line:    i + 1,
				Column:  tab + 1,
				Message: "the line is indented with a tab: YAML is indented with spaces only",
			}
		}
	}
	if m := noAnchor().FindStringSubmatch(reported); m != nil {
		for i, l := range lines {
			if strings.Contains(l, "*"+m[1]) {
				line = i + 1
				break
			}
		}
		return api.FieldError{Line: line, Message: fmt.Sprintf("*%s is an alias, which is not read: write the value out", short(m[1]))}
	}
	for _, c := range causes {
		if reported == c.reported {
			return api.FieldError{Line: line, Message: "this is neither YAML nor JSON: " + c.cause}
		}
	}
	return api.FieldError{Line: line, Message: "this is neither YAML nor JSON: " + clip(reported)}
}
